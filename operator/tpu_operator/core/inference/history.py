"""ControllerRevisions: what replicas of earlier revisions are made anew from, and what can be returned to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.core import names
from tpu_operator.core.inference.factory import owner_reference
from tpu_operator.core.inference.revision import remember
from tpu_operator.core.plan import Delete

if TYPE_CHECKING:
    from tpu_operator.core.inference.snapshot import ControllerRevision
    from tpu_operator.core.inference.view import InferenceView
    from tpu_operator.core.plan import Manifest

KIND: Final = "ControllerRevision"
API_VERSION: Final = "apps/v1"


def creates(view: InferenceView) -> list[Manifest]:
    """The newest revision, if it is not remembered yet: before any pod of it is made."""
    if view.newest.number:
        return []
    manifest = _manifest(view, _latest(view) + 1)
    return [manifest | {"data": remember(view.newest)}]


def applies(view: InferenceView) -> list[Manifest]:
    """The newest revision, if it was there before and others came after it."""
    if not view.newest.number or view.newest.number == _latest(view):
        return []
    manifest = _manifest(view, _latest(view) + 1)
    stored = view.snapshot.revisions[manifest["metadata"]["name"]]
    return [manifest | {"data": stored.data}]


def deletes(view: InferenceView) -> list[Delete]:
    """Revisions that no replica is of, but for the last few of them."""
    used = {group.key.revision for group in view.groups} | {view.newest.name, view.status.current_revision}
    idle = [item for item in _mine(view) if item.metadata.name not in _names(view, used)]
    idle.sort(key=lambda item: item.revision, reverse=True)
    limit = view.inference.spec.rollout.revision_history_limit
    return [
        Delete(KIND, meta.namespace, meta.name, meta.uid)
        for item in idle[limit:]
        if (meta := item.metadata).deletion_timestamp is None
    ]


def _names(view: InferenceView, revisions: set[str]) -> set[str]:
    return {names.revision_name(view.name, revision) for revision in revisions}


def _latest(view: InferenceView) -> int:
    """The highest number that a revision has."""
    return max((item.revision for item in _mine(view)), default=0)


def _mine(view: InferenceView) -> list[ControllerRevision]:
    uid = view.inference.metadata.uid
    return [item for item in view.snapshot.revisions.values() if item.metadata.owner_uid == uid]


def _manifest(view: InferenceView, number: int) -> Manifest:
    meta = view.inference.metadata
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": names.revision_name(view.name, view.newest.name),
            "namespace": meta.namespace,
            "labels": view.selector,
            "ownerReferences": [owner_reference(view.inference)],
        },
        "revision": number,
    }
