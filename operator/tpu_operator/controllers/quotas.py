"""The quotas of a namespace, or of all, and what objects of ours are about to use of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tpu_operator.core.quota import Quotas
from tpu_operator.core.snapshot import Quota
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.resources import QUOTAS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpu_operator.core.quota import Use
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.informer import Key


class QuotaState:
    """Quotas, shared by the controllers of all kinds.

    Args:
        api: where to read.
        namespace: only this namespace; empty for all.
    """

    def __init__(self, api: ApiServer, namespace: str = "") -> None:
        self.informer = Informer(
            api, QUOTAS, Quota, namespace=namespace, index=lambda quota: (quota.metadata.namespace, "")
        )
        self._claims: dict[tuple[str, Key], Counter[Use]] = {}
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the namespace of a quota that has changed, or that less is claimed of."""
        self._listeners.append(listener)
        self.informer.listen(lambda key, *_: listener(key[0]))

    def view(self, kind: str, key: Key) -> Quotas:
        """Quotas as an object sees them, with what others in its namespace are about to use."""
        claimed: Counter[Use] = Counter()
        for owner, claim in self._claims.items():
            if owner[1][0] == key[0] and owner != (kind, key):
                claimed.update(claim)
        return Quotas(list(self.informer.of((key[0], "")).values()), claimed)

    def claim(self, kind: str, key: Key, claimed: Mapping[Use, int]) -> None:
        """Hold quota for pods that an object is about to get, until it is decided about again."""
        before = self._claims.pop((kind, key), Counter())
        if claimed and self.informer.of((key[0], "")):
            self._claims[kind, key] = Counter(claimed)
        if before - Counter(claimed):
            for listener in self._listeners:
                listener(key[0])
