"""Whether a namespace's ResourceQuotas have room for all the pods that a job lacks.

The API server counts pod by pod. It would let half a gang in, which holds chips and cannot run; two such
halves would wait for each other for ever. What is counted here is what gangs are about, pods and chips; the
server itself says the rest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tpu_operator.api import BlockedReason
from tpu_operator.core import names
from tpu_operator.core.numbers import quantity, whole
from tpu_operator.core.pending import Hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.snapshot import Quota

CHIPS: Final = f"requests.{names.TPU_RESOURCE}"
PODS: Final = ("pods", "count/pods")
"""Names under which quotas count pods; the first leaves out those that have finished."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one namespace.

    Attributes:
        items: the quotas.
        claimed: what other jobs are about to use of them.
    """

    items: Sequence[Quota] = ()
    claimed: Mapping[str, int] = field(default_factory=dict)

    def shortage(self, needed: Mapping[str, int]) -> Hold | None:
        """The first quota that has no room for what is needed; None if there is room."""
        for quota in self.items:
            for resource, count in needed.items():
                if count and (hold := self._short(quota, resource, count)):
                    return hold
        return None

    def _short(self, quota: Quota, resource: str, needed: int) -> Hold | None:
        hard, used = _amount(quota.status.hard.get(resource)), _amount(quota.status.used.get(resource, "0"))
        if hard is None or used is None or quota.partial:
            return None
        left = max(0, hard - used - self.claimed.get(resource, 0))
        if needed <= left:
            return None
        text = (
            f"ResourceQuota {quota.metadata.name} has {left} of {hard} {resource} left, "
            f"{needed} are needed at once"
        )
        more = "; it has to be raised" if needed > hard else ""
        return Hold(BlockedReason.QUOTA_EXCEEDED, text + more)


def _amount(text: str | None) -> int | None:
    """What a quota says; the API server writes 2000 as 2k."""
    found = quantity(text) if text is not None else None
    return int(found) if found is not None else None


def demand(pods: Iterable[Manifest]) -> Counter[str]:
    """What pods use of a quota."""
    found: Counter[str] = Counter()
    for pod in pods:
        found.update(PODS)
        found[CHIPS] += sum(_chips(container) for container in pod["spec"].get("containers") or ())
    return found


def _chips(container: Manifest) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return whole(limits.get(names.TPU_RESOURCE)) or 0
