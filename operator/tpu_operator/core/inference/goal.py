"""What the rollout planner is given and what it says.

A replica is one slice group. It is *kept* from when its objects are made until it is decided that it goes,
and *leaving* from that decision, before it is routed away, until its last pod is gone: a leaving replica
holds chips and serves nobody new. *Ready* replicas are kept ones of which all hosts are ready (and have been
for `minReadySeconds`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpu_operator.api import CapacityShortage, HoldGate, RolloutState, RolloutStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class RoleGoal:
    """What the spec asks of one role.

    Attributes:
        name: the role.
        target: replicas over all copies. Zero is all or nothing: while another role has a target, 0 is 1.
        max_surge: replicas above the target, of all revisions together, that may exist, leaving ones counted.
        max_unavailable: replicas below the target that may be missing or not ready.
        shortage: why there is no room for a replica of the newest revision that waits for nodes or quota, in
            words; empty when none waits for these.
    """

    name: str
    target: int
    max_surge: int = 1
    max_unavailable: int = 0
    shortage: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """Replicas of one role in one revision.

    Attributes:
        kept: those that exist, in whatever state, and have not been told to go; also those being restarted.
        ready: how many of the kept ones are ready.
        leaving: those that have been told to go, until their last pod is gone.
    """

    kept: int = 0
    ready: int = 0
    leaving: int = 0


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision, as it is.

    Attributes:
        name: its name, the hash.
        number: its place in the history; a higher one is newer. The newest revision is named by `Goal`.
        roles: every role that the revision has by its own spec, also those without replicas.
        broken: its replicas are known not to become ready (crash loops, no image, past the deadline,
            rejected): those that are not ready give way without regard to budgets.
    """

    name: str
    number: int
    roles: Mapping[str, Count]
    broken: bool = False

    @property
    def servable(self) -> bool:
        """Whether it has a ready replica of every role."""
        return bool(self.roles) and all(count.ready > 0 for count in self.roles.values())

    @property
    def gone(self) -> bool:
        """Whether no replica of it exists."""
        return not any(count.kept or count.leaving for count in self.roles.values())


@dataclass(frozen=True, slots=True)
class Hold:
    """What a rollout waits for: in one word, and in words for people."""

    gate: HoldGate
    reason: str


@dataclass(frozen=True, slots=True)
class Share:
    """How much of every role the newest revision may have, at a step of a canary.

    Attributes:
        copies: whole copies of the role set; None where `percent` says it.
        percent: of the replicas of every role, rounded up.
        hold: what is waited for once the share is there.
    """

    copies: int | None = None
    percent: int | None = None
    hold: Hold = field(default=Hold(HoldGate.PAUSE, "the canary waits for its next step"))


@dataclass(frozen=True, slots=True)
class Goal:
    """What the spec asks for, and what the status remembers.

    Attributes:
        newest: name of the revision that the spec has; the one that grows.
        roles: its roles.
        current: name of the last revision that all replicas were of; going back to it knows no partition
            and no canary. Empty before there was one. Of others, those with nothing ready give way at once.
        copies: `spec.replicas`, the unit of `partition` and of a canary by copies.
        strategy: `RollingUpdate`, or `Recreate`, which keeps no promise about readiness.
        on_capacity_shortage: `DrainFirst` takes `max_unavailable` as 1 at least, and uses it where a new
            replica finds no room.
        allow_downtime: whether there may be no revision that can serve, where budgets leave no other way.
        paused: nothing goes on; the number of replicas still follows the targets.
        partition: copies that stay at the revisions before.
        canary: the share at the present step of the canary; None without one, or after its last step.
        stalled_seconds: since the rollout began or a replica last became ready in it.
        progress_deadline_seconds: after that long a hold is one of gate `Deadline`.
    """

    newest: str
    roles: tuple[RoleGoal, ...]
    current: str = ""
    copies: int = 1
    strategy: RolloutStrategy = RolloutStrategy.ROLLING_UPDATE
    on_capacity_shortage: CapacityShortage = CapacityShortage.WAIT
    allow_downtime: bool = False
    paused: bool = False
    partition: int = 0
    canary: Share | None = None
    stalled_seconds: float = 0.0
    progress_deadline_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Move:
    """One replica to make or to take down."""

    revision: str
    role: str
    create: bool


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now.

    Attributes:
        wanted: replicas to keep, by revision and role; for every one that was given, and the newest.
            Where it is less than what is kept, those that are not ready go first.
        moves: the same as single moves, in the order in which to make them: every state between two of
            them keeps the ratio, and any part of them keeps the budgets.
        hold: what is waited for when there is nothing to do and the rollout is not done.
        state: `Idle` when done, `Held` while it waits for people or past its deadline, else `Rolling`.
        done: everything is of the newest revision, ready and in number, and nothing else is left.
        settled: the newest revision has its share by canary or partition, all of it ready.
    """

    wanted: Mapping[tuple[str, str], int]
    moves: tuple[Move, ...] = ()
    hold: Hold | None = None
    state: RolloutState = RolloutState.ROLLING
    done: bool = False
    settled: bool = False
