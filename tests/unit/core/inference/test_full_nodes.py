"""`DrainFirst` on nodes that are exactly full, whichever replica the scheduler gives the room to.

All roles take slices of one kind. Every state is gone through that there is a way to: steps that are carried
out in part, slices that become free one by one, and a scheduler that gives them to any replica that waits.
From each of them there has to be a way to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tpu_operator.api import CapacityShortage
from tpu_operator.core.inference.rollout import Count, Goal, Move, Revision, RoleGoal, plan

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("prefill", "decode")


class Role(NamedTuple):
    """Replicas of one role.

    Attributes:
        old: ready ones of the old revision.
        leaving: those that hold their slice until they are gone.
        waiting: new ones without a slice.
        starting: new ones that have one.
        ready: new ones that are ready.
        told: whether the scheduler has said of a waiting one that there is no room.
    """

    old: int
    leaving: int = 0
    waiting: int = 0
    starting: int = 0
    ready: int = 0
    told: bool = False

    @property
    def slices(self) -> int:
        return self.old + self.leaving + self.starting + self.ready


State = tuple[Role, ...]


class Nodes:
    """A cluster with room for so many replicas, and a rollout in it.

    Args:
        targets: replicas of each role.
        surge: `maxSurge` of each.
        spare: slices beyond the sum of the targets.
    """

    def __init__(self, targets: tuple[int, ...], surge: int, spare: int) -> None:
        self.targets, self.surge = targets, surge
        self.slices = sum(targets) + spare

    @property
    def start(self) -> State:
        return tuple(Role(target) for target in self.targets)

    @property
    def end(self) -> State:
        return tuple(Role(0, ready=target) for target in self.targets)

    def following(self, state: State) -> Iterator[State]:
        """States that may come next."""
        yield from self._steps(state)
        free = self.slices - sum(role.slices for role in state)
        for index, role in enumerate(state):
            for later in _changes(role, free):
                yield (*state[:index], later, *state[index + 1 :])

    def _steps(self, state: State) -> Iterator[State]:
        """The moves of a step, one after the other: the operator may end after any of them."""
        for move in plan(self._goal(state), _revisions(state)).moves:
            index = NAMES.index(move.role)
            state = (*state[:index], _moved(state[index], move), *state[index + 1 :])
            yield state

    def _goal(self, state: State) -> Goal:
        roles = tuple(
            RoleGoal(name, target, self.surge, shortage="no room" if role.told else "")
            for name, target, role in zip(NAMES, self.targets, state, strict=True)
        )
        return Goal("b", roles, "a", on_capacity_shortage=CapacityShortage.DRAIN_FIRST)


def _moved(role: Role, move: Move) -> Role:
    if move.create:
        return role._replace(waiting=role.waiting + 1)
    if move.revision == "a":
        return role._replace(old=role.old - 1, leaving=role.leaving + 1)
    if role.waiting:
        left = role.waiting - 1
        return role._replace(waiting=left, told=role.told and left > 0)
    if role.starting:
        return role._replace(starting=role.starting - 1, leaving=role.leaving + 1)
    return role._replace(ready=role.ready - 1, leaving=role.leaving + 1)


def _changes(role: Role, free: int) -> Iterator[Role]:
    """What may become of a role without the operator."""
    if role.leaving:
        yield role._replace(leaving=role.leaving - 1)
    if role.waiting and free:
        left = role.waiting - 1
        yield role._replace(waiting=left, starting=role.starting + 1, told=role.told and left > 0)
    if role.waiting and not free and not role.told:
        yield role._replace(told=True)
    if role.starting:
        yield role._replace(starting=role.starting - 1, ready=role.ready + 1)


def _revisions(state: State) -> list[Revision]:
    named = list(zip(NAMES, state, strict=True))
    old = {name: Count(role.old, role.old, role.leaving) for name, role in named}
    new = {name: Count(role.waiting + role.starting + role.ready, role.ready) for name, role in named}
    return [Revision("a", 1, old), Revision("b", 2, new)]


def explore(nodes: Nodes) -> dict[State, set[State]]:
    """Every state that there is a way to, with those that it may have come from."""
    before: dict[State, set[State]] = {nodes.start: set()}
    queue = [nodes.start]
    while queue:
        state = queue.pop()
        for later in nodes.following(state):
            if later not in before:
                before[later] = set()
                queue.append(later)
            before[later].add(state)
    return before


def ending(before: dict[State, set[State]], end: State) -> set[State]:
    """States from which there is a way to the end."""
    found, queue = {end}, [end]
    while queue:
        for state in before[queue.pop()] - found:
            found.add(state)
            queue.append(state)
    return found


def floor_is_kept(state: State, targets: tuple[int, ...]) -> bool:
    """Whether no more than one replica of each role is missing."""
    return all(role.old + role.ready >= target - 1 for role, target in zip(state, targets, strict=True))


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("surge", [1, 2])
@pytest.mark.parametrize("targets", [(2, 2), (2, 3), (3, 3), (2, 4)])
def test_pc29_drain_first_comes_to_an_end_whoever_gets_the_room(
    targets: tuple[int, ...], surge: int, spare: int
) -> None:
    nodes = Nodes(targets, surge, spare)
    before = explore(nodes)
    stuck = before.keys() - ending(before, nodes.end)
    assert not stuck, (len(stuck), len(before), min(stuck))
    assert all(floor_is_kept(state, targets) for state in before)
