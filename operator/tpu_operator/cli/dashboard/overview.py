"""The first page: all jobs and models of a namespace, those in trouble first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tpu_operator.cli.dashboard.markup import Child, Markup, badge, join, section, table, tag, when
from tpu_operator.cli.text import clip, flat
from tpu_operator.cli.tree import describe_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpu_operator.api import ObjectMeta, TPUInference, TPUJob

ROOM: Final = 160
"""Characters of a message in a table."""
LAST: Final = ("Running", "Serving", "Suspended", "Stopped", "Succeeded")
"""Phases that need nobody's attention, in the order in which they are listed."""
JOBS: Final = "jobs"
INFERENCES: Final = "inferences"


def overview(jobs: Sequence[TPUJob], inferences: Sequence[TPUInference], place: str) -> Markup:
    """The page.

    Args:
        jobs: TPUJobs.
        inferences: TPUInferences.
        place: where they are, in words.
    """
    rows = (_job(one) for one in sorted(jobs, key=lambda one: _order(str(one.status.phase), one.metadata)))
    models = sorted(inferences, key=lambda one: _order(str(one.status.phase), one.metadata))
    nothing = tag("p", "There are no TPUJobs and no TPUInferences here.", class_="empty")
    return join(
        [
            tag("h1", place),
            section(
                "Jobs",
                _counts(str(one.status.phase) for one in jobs),
                table(("Name", "Phase", "Ready", "TPU", "Restarts", "Age", "Why"), rows),
            ),
            section(
                "Models",
                _counts(str(one.status.phase) for one in inferences),
                table(("Name", "Phase", "Ready", "Model", "Revision", "Age", "Why"), map(_model, models)),
            ),
            None if jobs or inferences else nothing,
        ]
    )


def _order(phase: str, meta: ObjectMeta) -> tuple[int, str, str]:
    place = LAST.index(phase) + 1 if phase in LAST else 0
    return place, meta.namespace, meta.name


def _counts(phases: Iterable[str]) -> Markup:
    counted = sorted(Counter(phases).items())
    badges = [(badge(phase), f" {count} ") for phase, count in counted]
    return tag("p", badges, class_="counts") if badges else Markup("")


def link(kind: str, meta: ObjectMeta) -> Markup:
    """A link to the page of an object."""
    path = f"/{kind}/{quote(meta.namespace, safe='')}/{quote(meta.name, safe='')}"
    return tag("a", f"{meta.namespace}/{meta.name}", href=path)


def _job(job: TPUJob) -> list[Child]:
    status, tpu = job.status, job.spec.tpu
    return [
        link(JOBS, job.metadata),
        badge(str(status.phase)),
        status.ready,
        tag("span", f"{tpu.accelerator} {tpu.topology}", title=describe_shape(job)),
        str(status.restarts.total),
        when(job.metadata.creation_timestamp),
        why(status.reason, status.message),
    ]


def _model(model: TPUInference) -> list[Child]:
    status = model.status
    old = status.current_revision not in {"", status.updated_revision}
    moves = f"{status.current_revision} → {status.updated_revision}" if old else status.updated_revision
    return [
        link(INFERENCES, model.metadata),
        badge(str(status.phase)),
        status.ready,
        model.spec.model.name,
        moves,
        when(model.metadata.creation_timestamp),
        why(status.reason, status.message),
    ]


def why(reason: str | None, message: str | None) -> Markup:
    """What an object waits for, or has ended by."""
    if not reason:
        return Markup("")
    text = flat(message or "")
    return tag("span", tag("b", reason), f" {clip(text, ROOM)}", title=text)
