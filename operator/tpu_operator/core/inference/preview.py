"""What a rollout will do if every replica becomes ready, step by step: from the planner that then does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpu_operator.core.inference.goal import Count, Revision
from tpu_operator.core.inference.rollout import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tpu_operator.core.inference.goal import Goal, Hold, Move, Share, Step


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of a preview.

    Attributes:
        waits: what was waited for before it; empty where nothing was.
        moves: replicas that it makes and takes down.
        revisions: what there is when it has been carried out, nothing of it ready or gone yet.
    """

    waits: str
    moves: tuple[Move, ...]
    revisions: tuple[Revision, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """All steps from here.

    Attributes:
        frames: the steps; the first has no moves and is what there is.
        hold: what it ends with: what the rollout then waits for, and never gets by itself; None at its end.
        roles: all roles, those of the newest revision first.
        targets: replicas that each role is to have in the end.
    """

    frames: tuple[Frame, ...]
    hold: Hold | None
    roles: tuple[str, ...]
    targets: Mapping[str, int]


def preview(goal: Goal, revisions: Iterable[Revision], shares: Sequence[Share] = ()) -> Preview:
    """Go through a rollout, taking for granted that what starts becomes ready and what leaves goes.

    Args:
        goal: what is wanted; its `canary` is not looked at.
        revisions: what there is.
        shares: the steps of a canary that are not done, each taken as ended once it is there.
    """
    now = _with_newest(goal, tuple(revisions))
    left = [*shares, None]
    goal = replace(goal, canary=left.pop(0))
    frames, waits = [Frame("", (), now)], ""
    while True:
        step = plan(goal, now)
        if step.moves:
            now = tuple(_moved(revision, step) for revision in now)
            frames.append(Frame(waits, step.moves, now))
            waits = ""
        elif step.settled and goal.canary is not None:
            waits = step.hold.reason if step.hold else ""
            goal = replace(goal, canary=left.pop(0))
        elif (later := _later(now)) is not None:
            waits, now = later
        else:
            break
    names = dict.fromkeys([*(role.name for role in goal.roles), *_roles(frames)])
    targets = {role.name: role.target for role in goal.roles}
    return Preview(tuple(frames), step.hold, tuple(names), targets)


def _with_newest(goal: Goal, revisions: tuple[Revision, ...]) -> tuple[Revision, ...]:
    """The revisions from old to new, the newest among them though it has nothing yet."""
    old = sorted((r for r in revisions if r.name != goal.newest), key=lambda revision: revision.number)
    number = max((revision.number for revision in revisions), default=0) + 1
    roles = {role.name: Count() for role in goal.roles}
    newest = next((r for r in revisions if r.name == goal.newest), Revision(goal.newest, number, roles))
    whole = (*old, replace(newest, roles=roles | dict(newest.roles)))
    return tuple(replace(r, roles=_in_order(r.roles, roles)) for r in whole)


def _in_order(counts: Mapping[str, Count], roles: Iterable[str]) -> dict[str, Count]:
    """Replicas by role, in the order that the spec has, and then those of roles that it has no more."""
    return {role: counts[role] for role in dict.fromkeys([*roles, *counts]) if role in counts}


def _moved(revision: Revision, step: Step) -> Revision:
    """A revision after a step, of which nothing is ready or gone yet."""
    counts = {}
    for role, count in revision.roles.items():
        kept = step.wanted.get((revision.name, role), count.kept)
        gone = max(0, count.kept - kept)
        counts[role] = Count(kept, min(count.ready, kept), count.leaving + gone)
    return replace(revision, roles=counts)


def _later(revisions: tuple[Revision, ...]) -> tuple[str, tuple[Revision, ...]] | None:
    """What there is after a while, and what that while was for: first what leaves goes, which is quick."""
    if leaving := [f"{role} {r.name}" for r in revisions for role, count in r.roles.items() if count.leaving]:
        return f"{', '.join(leaving)} gone", tuple(
            _each(r, lambda c: replace(c, leaving=0)) for r in revisions
        )
    starting = [
        f"{role} {r.name}" for r in revisions for role, count in r.roles.items() if count.ready < count.kept
    ]
    if starting:
        ready = tuple(_each(r, lambda c: replace(c, ready=c.kept)) for r in revisions)
        return f"{', '.join(starting)} ready", ready
    return None


def _each(revision: Revision, change: Callable[[Count], Count]) -> Revision:
    return replace(revision, roles={role: change(count) for role, count in revision.roles.items()})


def _roles(frames: Iterable[Frame]) -> Iterator[str]:
    yield from (role for frame in frames for revision in frame.revisions for role in revision.roles)
