"""What goes wrong, and when: drawn from the seed before anything starts.

Each seed takes a random subset of all kinds of faults ("swarm testing"), since faults hide each other: who is
cut off all the time never sees a stale answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tests.sim.server import RefusalError

if TYPE_CHECKING:
    from random import Random

Crash = Literal["", "before", "after", "freeze"]

WINDOWS = (
    "slow",  # requests take seconds, some longer than the client waits
    "down",  # nobody listens
    "errors",  # 500, 503, 504
    "throttle",  # 429 with Retry-After
    "lost",  # carried out, but the answer gets lost
    "hang",  # not carried out, and never answered
    "conflict",  # 409 for changes of what exists
    "watch-lag",  # events come late
    "watch-dead",  # events do not come, the connection stays
    "watch-refused",  # no new watches
)
INSTANTS = (
    "cut",  # watches end, by the book or in the middle of a line
    "watch-error",  # watches end with an ERROR event
    "compact",  # history is forgotten
    "outage",  # the server restarts
    "clock",  # a replica's time of day jumps
    "kill",
    "terminate",
    "freeze",
)
LATENCY = 0.004
"""Mean seconds on the way to the server, and back."""


class Fate(NamedTuple):
    """What becomes of one request.

    Attributes:
        up: seconds until the server has it.
        down: seconds until the answer is there.
        refusal: the answer, if the server does not carry it out.
        reset: the connection breaks: before the server has it, or before the answer is there.
        hang: nothing ever comes.
        straggles: seconds for which the request lives on after its connection is closed.
    """

    up: float
    down: float
    refusal: RefusalError | None = None
    reset: Literal["", "before", "after"] = ""
    hang: bool = False
    straggles: float = 0.0


@dataclass(frozen=True)
class Window:
    """A fault that lasts.

    Attributes:
        kind: one of WINDOWS.
        start: virtual time.
        end: virtual time.
        chance: share of what it meets that it hits.
        seconds: how long it makes things last.
        who: the replica that it meets, empty for all.
    """

    kind: str
    start: float
    end: float
    chance: float
    seconds: float
    who: str


class Instant(NamedTuple):
    """A fault of a moment."""

    time: float
    kind: str
    who: str
    seconds: float


@dataclass
class Faults:
    """All faults of one run."""

    rng: Random
    windows: list[Window] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)
    crashes: dict[str, dict[int, Crash]] = field(default_factory=dict)
    """For each replica, numbers of the requests at which it dies, or freezes."""

    def fate(self, who: str, method: str, now: float) -> Fate:
        """What becomes of a request that a replica sends now."""
        rng = self.rng
        fate = Fate(rng.expovariate(1 / LATENCY), rng.expovariate(1 / LATENCY))
        if rng.random() < 0.3:
            fate = fate._replace(straggles=rng.uniform(0.0, 0.5))
        for window in self._hits(now, who):
            fate = self._worse(fate, window, method)
        return fate

    def lag(self, who: str, path: str, now: float) -> float | None:
        """Seconds that an event of a watch takes; None when it gets lost, and all after it."""
        delay = self.rng.expovariate(1 / LATENCY)
        for window in self._hits(now, who):
            if window.kind == "watch-lag":
                delay += self.rng.uniform(0.0, window.seconds)
            elif window.kind == "watch-dead":
                return None
        return delay

    def refused(self, who: str, now: float) -> RefusalError | None:
        """Why a replica's watch is not opened."""
        hit = any(window.kind == "watch-refused" for window in self._hits(now, who))
        return self._failure() if hit else None

    def crash(self, who: str, count: int) -> Crash:
        """What happens to a replica at its request of that number."""
        return self.crashes.get(who, {}).get(count, "")

    def _hits(self, now: float, who: str) -> list[Window]:
        return [
            w
            for w in self.windows
            if w.start <= now < w.end and w.who in {"", who} and self.rng.random() < w.chance
        ]

    def _worse(self, fate: Fate, window: Window, method: str) -> Fate:
        changes: dict[str, Any] = {}
        match window.kind:
            case "slow":
                seconds, share = self.rng.uniform(0.0, window.seconds), self.rng.random()
                changes = {"up": fate.up + seconds * share, "down": fate.down + seconds * (1 - share)}
            case "down":
                changes = {"reset": "before"}
            case "lost":
                changes = {"reset": "after"}
            case "hang":
                changes = {"hang": True}
            case "errors":
                changes = {"refusal": self._failure()}
            case "throttle":
                wait = float(self.rng.randint(1, 5))
                changes = {"refusal": RefusalError(429, "TooManyRequests", "slow down", wait)}
            case "conflict" if method in {"PATCH", "PUT"}:
                changes = {"refusal": RefusalError(409, "Conflict", "the object has been modified")}
        return fate._replace(**changes)

    def _failure(self) -> RefusalError:
        status, reason = self.rng.choice(
            [(500, "InternalError"), (503, "ServiceUnavailable"), (504, "Timeout")]
        )
        return RefusalError(status, reason, "etcdserver: leader changed")


def draw(rng: Random, replicas: list[str], until: float) -> Faults:
    """Faults for a run, all over by `until`."""
    faults = Faults(rng)
    kinds = [kind for kind in (*WINDOWS, *INSTANTS, "crash") if rng.random() < 0.35]
    for kind in kinds:
        for _ in range(rng.randint(1, 3)):
            who = rng.choice(["", *replicas])
            if kind in WINDOWS:
                faults.windows.append(_window(rng, kind, who, until))
            elif kind == "crash":
                crashes: list[Crash] = ["before", "after", "freeze"]
                when = rng.choice(crashes)
                faults.crashes.setdefault(who or replicas[0], {})[int(rng.paretovariate(0.6) * 3)] = when
            else:
                seconds = rng.choice([1.0, 8.0, 12.0, 16.0, 25.0, 60.0])
                faults.instants.append(Instant(rng.uniform(1.0, until), kind, who, seconds))
    crowd(rng, faults, until)
    faults.instants.sort()
    return faults


def crowd(rng: Random, faults: Faults, until: float) -> None:
    """Move the faults of a moment together: what hurts is one right after the other."""
    if rng.random() < 0.5:
        center = rng.uniform(1.0, until)
        faults.instants = [i._replace(time=center + abs(rng.gauss(0.0, 4.0))) for i in faults.instants]


def _window(rng: Random, kind: str, who: str, until: float) -> Window:
    start = rng.uniform(0.0, until)
    length = rng.choice([2.0, 8.0, 20.0, 60.0, 150.0])
    chance = 1.0 if kind == "watch-dead" else rng.choice([0.1, 0.5, 1.0])
    seconds = rng.choice([1.0, 4.0, 15.0, 40.0])
    return Window(kind, start, min(start + length, until), chance, seconds, who)
