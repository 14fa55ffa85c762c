"""What will become of a TPUInference: its rollout, step by step, with the slices and chips that it holds.

The steps are `preview`'s, and so the planner's. Here is what they are asked about, which is made from objects
by the same functions as for the planner itself, and what people and programs are told.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from tpu_operator.api import TPUInferenceStatus
from tpu_operator.core.inference import conditions, goals, scaling
from tpu_operator.core.inference.goal import Count
from tpu_operator.core.inference.goal import Revision as Replicas
from tpu_operator.core.inference.images import Images
from tpu_operator.core.inference.preview import preview
from tpu_operator.core.inference.revision import shape_of
from tpu_operator.core.inference.snapshot import InferenceSnapshot
from tpu_operator.core.inference.view import Installation, observe
from tpu_operator.core.settings import PodSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tpu_operator.api import RoleSpec, TPUInference
    from tpu_operator.core.inference.goal import Goal, Move, Share
    from tpu_operator.core.inference.preview import Frame, Preview
    from tpu_operator.core.inference.view import InferenceView

NOBODYS: Final = Installation(PodSettings("", ""), Images("", "", ""))
"""No names of revisions, and no numbers, depend on an installation's images."""
BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Slice(msgspec.Struct, frozen=True):
    """A kind of slice.

    Attributes:
        name: accelerator and topology, as the spec has them.
        chips: chips of one.
    """

    name: str
    chips: int


class Change(msgspec.Struct, frozen=True):
    """Replicas that a step makes, or takes down where the number is below 0."""

    role: str
    revision: str
    replicas: int


class Held(msgspec.Struct, frozen=True):
    """Replicas of a role in a revision.

    Attributes:
        role: the role.
        revision: the revision.
        kept: those that are to stay for now.
        leaving: those that have been told to go, and still hold their chips.
    """

    role: str
    revision: str
    kept: int
    leaving: int


class Step(msgspec.Struct, frozen=True):
    """One step.

    Attributes:
        after: what was waited for before it; empty where nothing was.
        changes: what it does, in order.
        replicas: what there is when it has been done, nothing of it ready or gone yet.
        chips: chips that these hold.
    """

    after: str
    changes: tuple[Change, ...]
    replicas: tuple[Held, ...]
    chips: int


class Need(msgspec.Struct, frozen=True):
    """Slices of a kind over the whole rollout.

    Attributes:
        slice: accelerator and topology.
        now: those that are held before it.
        most: the most that are held at one time.
        end: those that are held after it.
        spare: how many of these are only needed meanwhile.
    """

    slice: str
    now: int
    most: int
    end: int
    spare: int


class End(msgspec.Struct, frozen=True):
    """What a rollout waits for in the end, and never gets by itself."""

    gate: str
    reason: str


class Forecast(msgspec.Struct, frozen=True):
    """A rollout, from what there is to its end.

    Attributes:
        name: of the TPUInference.
        newest: the revision that the spec asks for.
        revisions: all revisions that there are on the way, from old to new.
        roles: all roles, those of the newest revision first.
        targets: replicas that each role is to have in the end.
        steps: the steps; the first does nothing, and is what there is.
        slices: what it takes, by kind of slice.
        end: None where the rollout is then done.
        rejected: why the revision that the spec asks for is not the newest; empty where it is.
    """

    name: str
    newest: str
    revisions: tuple[str, ...]
    roles: tuple[str, ...]
    targets: dict[str, int]
    steps: tuple[Step, ...]
    slices: tuple[Need, ...]
    end: End | None
    rejected: str = ""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return len(self.steps) == 1 and self.end is None


def of_snapshot(snapshot: InferenceSnapshot, now: datetime) -> Forecast:
    """What will become of a TPUInference that is there; its spec may be one that it does not have yet.

    Room is taken for granted, as readiness is: what runs out of it is for the rollout itself to find.

    Raises:
        CatalogError: the `tpu` of a role names no shape that the catalog can make sense of.
    """
    view = observe(snapshot, now, NOBODYS)
    found = preview(_goal(view), goals.revisions(view), _shares(view))
    slices = {
        (revision.name, role.name): _slice(role)
        for revision in view.revisions.values()
        for role in revision.spec.roles
    }
    told = f"{conditions.rejected(view.rejected)}; {conditions.ANOTHER_TRY}" if view.rejected else ""
    return msgspec.structs.replace(describe(view.name, found, slices), rejected=told)


def of_specs(old: TPUInference | None, new: TPUInference) -> Forecast:
    """The way from one spec, all of whose replicas are ready, to another; from nothing without the first.

    Raises:
        CatalogError: the `tpu` of a role names no shape that the catalog can make sense of.
    """
    after = _unseen(new)
    goal, slices, there = _goal(after), _slices(after), list[Replicas]()
    if old is not None:
        before = _unseen(old)
        goal = replace(goal, current=before.newest.name)
        slices = _slices(before) | slices
        there.append(_all_ready(before))
    return describe(new.metadata.name, preview(goal, there, _shares(after)), slices)


def describe(name: str, found: Preview, slices: Mapping[tuple[str, str], Slice]) -> Forecast:
    """Say what a preview means in slices and chips.

    Args:
        name: of the TPUInference.
        found: the preview.
        slices: the slice of each replica, by revision and role; what is not there holds no chips.
    """
    steps = tuple(_step(frame, found.roles, slices) for frame in found.frames)
    names = tuple(revision.name for revision in found.frames[0].revisions)
    return Forecast(
        name=name,
        newest=names[-1],
        revisions=names,
        roles=found.roles,
        targets=dict(found.targets),
        steps=steps,
        slices=tuple(_needs(steps, slices)),
        end=End(str(found.hold.gate), found.hold.reason) if found.hold else None,
    )


def render(forecast: Forecast) -> list[str]:
    """Write a forecast as a table: for each role its replicas by revision, and those that leave."""
    names = "/".join(forecast.revisions)
    head = ["step", *(f"{role} {names}" for role in forecast.roles), "chips", "does", "after"]
    lines = [head, *(_line(number, step, forecast) for number, step in enumerate(forecast.steps))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return [*table, "", *_summary(forecast)]


def _unseen(inference: TPUInference) -> InferenceView:
    """A TPUInference that no operator has seen: files may have the status of another day."""
    bare = inference.model_copy(update={"status": TPUInferenceStatus()})
    return observe(InferenceSnapshot(bare), BEGINNING, NOBODYS)


def _goal(view: InferenceView) -> Goal:
    goal = goals.goal(view)
    roles = tuple(replace(role, shortage="") for role in goal.roles)
    return replace(goal, roles=roles, stalled_seconds=0.0)


def _shares(view: InferenceView) -> list[Share]:
    """What the newest revision may have at each step of the canary that is not done."""
    status, canary = view.status, view.inference.spec.rollout.canary
    done = status.rollout.canary_step if status.updated_revision == view.newest.name else 0
    steps = range(done, len(canary.steps) if canary else 0)
    shares = (goals.goal(_at_step(view, step)).canary for step in steps)
    return [share for share in shares if share is not None]


def _at_step(view: InferenceView, done: int) -> InferenceView:
    """The same when so many steps of the canary are done, and the next one has just begun."""
    rollout = view.status.rollout.model_copy(update={"canary_step": done, "step_ready_since": None})
    update = {"updated_revision": view.newest.name, "rollout": rollout}
    status = view.status.model_copy(update=update)
    inference = view.inference.model_copy(update={"status": status})
    return replace(view, snapshot=replace(view.snapshot, inference=inference))


def _all_ready(view: InferenceView) -> Replicas:
    targets = scaling.targets(view.inference, view.snapshot.scalers)
    counts = {role: max(1, target) if any(targets.values()) else 0 for role, target in targets.items()}
    return Replicas(view.newest.name, 1, {role: Count(n, n) for role, n in counts.items()})


def _slices(view: InferenceView) -> dict[tuple[str, str], Slice]:
    return {(view.newest.name, role.name): _slice(role) for role in view.newest.spec.roles}


def _slice(role: RoleSpec) -> Slice:
    tpu = role.tpu
    hosts = f" with chipsPerHost {tpu.chips_per_host}" if tpu.chips_per_host else ""
    return Slice(f"{tpu.accelerator} {tpu.topology}{hosts}", shape_of(role).chips)


def _step(frame: Frame, roles: Iterable[str], slices: Mapping[tuple[str, str], Slice]) -> Step:
    replicas = tuple(
        Held(role, revision.name, count.kept, count.leaving)
        for role in roles
        for revision in frame.revisions
        if (count := revision.roles.get(role))
    )
    chips = sum((held.kept + held.leaving) * each.chips for held, each in _with(replicas, slices))
    return Step(frame.waits, tuple(_changes(frame.moves)), replicas, chips)


def _with(replicas: Iterable[Held], slices: Mapping[tuple[str, str], Slice]) -> Iterator[tuple[Held, Slice]]:
    """Replicas with their slices, as far as these are known."""
    for held in replicas:
        if found := slices.get((held.revision, held.role)):
            yield held, found


def _changes(moves: Iterable[Move]) -> Iterator[Change]:
    """Moves of the same kind as one."""
    counted: dict[tuple[str, str, bool], int] = {}
    for move in moves:
        key = (move.role, move.revision, move.create)
        counted[key] = counted.get(key, 0) + (1 if move.create else -1)
    yield from (Change(role, revision, n) for (role, revision, _), n in counted.items())


def _needs(steps: tuple[Step, ...], slices: Mapping[tuple[str, str], Slice]) -> Iterator[Need]:
    """What is held of each kind of slice, all roles together."""
    held = [_count(step, slices) for step in steps]
    for kind in dict.fromkeys(name for counts in held for name in counts):
        numbers = [counts.get(kind, 0) for counts in held]
        now, most = numbers[0], max(numbers)
        end = sum(each.kept for each, one in _with(steps[-1].replicas, slices) if one.name == kind)
        yield Need(kind, now, most, end, most - max(now, end))


def _count(step: Step, slices: Mapping[tuple[str, str], Slice]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for held, one in _with(step.replicas, slices):
        counts[one.name] = counts.get(one.name, 0) + held.kept + held.leaving
    return counts


def _summary(forecast: Forecast) -> Iterator[str]:
    if forecast.rejected:
        yield forecast.rejected
    spare = [f"{need.spare} of {need.slice}" for need in forecast.slices if need.spare > 0]
    yield f"spare slices needed: {', '.join(spare) or 'none'}"
    more = [f"{n} of {need.slice}" for need in forecast.slices if (n := need.end - need.now) > 0]
    if more:
        yield f"more slices in the end: {', '.join(more)}"
    yield f"then waits ({forecast.end.gate}): {forecast.end.reason}" if forecast.end else "then done"


def _line(number: int, step: Step, forecast: Forecast) -> list[str]:
    cells = [_cell(step, role, forecast.revisions) for role in forecast.roles]
    does = ", ".join(f"{change.replicas:+d} {change.role} {change.revision}" for change in step.changes)
    return [str(number), *cells, str(step.chips), does, step.after]


def _cell(step: Step, role: str, revisions: Iterable[str]) -> str:
    held = {one.revision: one for one in step.replicas if one.role == role}
    kept = "/".join(str(held[name].kept if name in held else 0) for name in revisions)
    leaving = sum(one.leaving for one in held.values())
    return f"{kept} (-{leaving})" if leaving else kept
