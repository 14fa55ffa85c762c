"""The objects that bring requests to TPUInferences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpu_operator.controllers.base import owner_by
from tpu_operator.core import names
from tpu_operator.core.inference.routing import FOREIGN_KINDS, KINDS, RoutingObject
from tpu_operator.engine.optional import OptionalInformer
from tpu_operator.engine.resources import BY_KIND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpu_operator.core.inference.routing import Objects
    from tpu_operator.engine.client import ApiServer
    from tpu_operator.engine.informer import Key

inference_of = owner_by(names.LABEL_INFERENCE)


class RoutingState:
    """Routing objects of a namespace, or of all.

    Pools and routes are read whoever has made them: ours have the name of their TPUInference, which may be
    taken. Objects of pickers have names that nobody else is likely to choose.

    Args:
        api: where to read.
        namespace: only this namespace; empty for all.
    """

    def __init__(self, api: ApiServer, namespace: str = "") -> None:
        ours: dict[str, Any] = {"selector": names.LABEL_INFERENCE, "index": inference_of}
        every: dict[str, Any] = {"index": lambda item: (item.metadata.namespace, item.metadata.name)}
        self._informers = {
            kind: OptionalInformer[RoutingObject](
                api,
                BY_KIND[kind],
                RoutingObject,
                namespace=namespace,
                **(every if kind in FOREIGN_KINDS else ours),
            )
            for kind in KINDS
        }

    @property
    def informers(self) -> Mapping[str, OptionalInformer[RoutingObject]]:
        """By kind, under names that are none where others have informers of that kind."""
        return {f"{kind} of routing" if kind == "Service" else kind: i for kind, i in self._informers.items()}

    def listen(self, changed: Callable[[Key], None], served: Callable[[], None]) -> None:
        """Be told of changes.

        Args:
            changed: called with the key of a TPUInference of which an object has changed, if there is one.
            served: called when the cluster begins or ceases to serve one of the kinds.
        """
        for kind, informer in self._informers.items():
            key_of = _name_of if kind in FOREIGN_KINDS else inference_of

            def on_change(
                key: Key,  # noqa: ARG001
                old: RoutingObject | None,
                new: RoutingObject | None,
                key_of: Callable[[RoutingObject], Key | None] = key_of,
            ) -> None:
                for owner in {key_of(item) for item in (old, new) if item}:
                    if owner:
                        changed(owner)

            informer.listen(on_change)
            informer.listen_served(served)

    def of(self, key: Key) -> Objects:
        """What there is for a TPUInference, by kinds that are served."""
        return {kind: dict(i.of(key)) for kind, i in self._informers.items() if i.served}


def _name_of(item: RoutingObject) -> Key:
    """Key of the TPUInference that would have an object of this name."""
    return item.metadata.namespace, item.metadata.name
