"""The books of a rollout under load: what became of every request, and what the API server has shown."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.engines.completions import Outcome
from tests.judge import Broken, Promise, Replica, Sight

if TYPE_CHECKING:
    from pathlib import Path

WRITES_SECONDS: Final = 2.0
"""For which the writes of one step are seen apart, on a machine that is busy."""


@dataclass(frozen=True)
class Request:
    """A request for a stream. Times are in seconds since the epoch.

    Attributes:
        sent: when.
        ended: when its answer did.
        asked: how many tokens.
        outcome: what came of it; status 0 where no answer came.
        again: how often it was sent once more, as the gateway's two halves knew different pods.
    """

    sent: float
    ended: float
    asked: int
    outcome: Outcome
    again: int = 0

    @property
    def failed(self) -> bool:
        """Whether it was not served."""
        return self.outcome.status != 200

    @property
    def cut(self) -> bool:
        """Whether its stream began, and ended before its end."""
        return not self.failed and not (self.outcome.whole and self.outcome.tokens == self.asked)

    def line(self) -> str:
        """As a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Request:
        """From what `line` has written."""
        outcome = raw["outcome"] | {"sent_to": tuple(raw["outcome"]["sent_to"])}
        return cls(**raw | {"outcome": Outcome(**outcome)})


@dataclass(frozen=True)
class Record:
    """All of one scenario.

    Attributes:
        scenario: its name.
        requests: in the order in which they ended.
        sights: what the API server has shown.
        revisions: of pods, by name.
        addresses: of pods, by name.
        marks: what happened at which second since the epoch.
    """

    scenario: str
    requests: tuple[Request, ...]
    sights: tuple[Sight, ...]
    revisions: dict[str, str]
    addresses: dict[str, str] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> list[Request]:
        """Requests that were not served."""
        return [each for each in self.requests if each.failed]

    @property
    def cut(self) -> list[Request]:
        """Streams that ended before their end."""
        return [each for each in self.requests if each.cut]

    @property
    def across(self) -> list[Request]:
        """Requests that were prefilled and decoded by pods of two revisions, or by one that nobody knows."""
        return [each for each in self.requests if not each.failed and len(self._served_by(each)) != 1]

    @property
    def over(self) -> list[Sight]:
        """Instants with more replicas than promised."""
        return [each for each in self.sights if _breaks(each, {Promise.BUDGET})]

    @property
    def below(self) -> list[Sight]:
        """Instants with fewer replicas that serve than promised, or without a revision that can."""
        return [each for each in self.sights if _breaks(each, {Promise.FLOOR, Promise.SERVABLE})]

    @property
    def alone(self) -> list[Sight]:
        """Instants at which a revision that was complete kept replicas of some roles alone.

        Only those that lasted for longer than it takes to write the next step.
        """
        roles = {each.role for sight in self.sights for each in sight.replicas}
        complete: set[str] = set()
        found = []
        for sight, following in itertools.pairwise(self.sights):
            kept = _kept_roles(sight)
            complete |= {revision for revision, those in kept.items() if those == roles}
            if following.at - sight.at > WRITES_SECONDS and any(
                those != roles for revision, those in kept.items() if revision in complete
            ):
                found.append(sight)
        return found

    @property
    def seconds(self) -> float:
        """From the first mark to the last."""
        times = self.marks.values()
        return max(times) - min(times) if times else 0.0

    def served(self) -> Counter[str]:
        """Requests that were served, by the revision of their decoder."""
        served = (each.outcome.decoded_by for each in self.requests if not each.failed)
        return Counter(self.revisions.get(pod, "?") for pod in served)

    def _served_by(self, request: Request) -> set[str]:
        """Revisions that have served a request; a pod that nobody knows is one of its own."""
        pods = request.outcome.prefilled_by, request.outcome.decoded_by
        return {self.revisions.get(pod, f"of {pod or 'nobody'}") for pod in pods}

    def save(self, path: Path) -> None:
        """Write it, as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read what `save` has written."""
        raw = json.loads(path.read_text())
        requests = tuple(map(Request.parse, raw["requests"]))
        return cls(**raw | {"requests": requests, "sights": tuple(map(_sight, raw["sights"]))})


def _kept_roles(sight: Sight) -> dict[str, set[str]]:
    """Roles that each revision keeps replicas of, if it keeps any."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for each in sight.replicas:
        if each.kept:
            found[each.revision].add(each.role)
    return found


def _breaks(sight: Sight, promises: set[Promise]) -> bool:
    return any(each.promise in promises for each in sight.broken)


def _sight(raw: dict[str, Any]) -> Sight:
    broken = tuple(Broken(Promise(each["promise"]), each["text"]) for each in raw["broken"])
    return Sight(raw["at"], tuple(Replica(**each) for each in raw["replicas"]), broken)
