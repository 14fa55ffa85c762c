"""How the replicas of a TPUInference came and went, as long as somebody has watched."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tpu_operator.api import TPUInference

MOST: Final = 2000
"""Samples of an object that are kept: the latest."""


class Sample(NamedTuple):
    """What there was since a time.

    Attributes:
        time: since when.
        ready: ready replicas by role and revision.
        gate: what the rollout waited for, empty if for nothing.
    """

    time: datetime
    ready: Mapping[str, Mapping[str, int]]
    gate: str


@dataclass(slots=True)
class History:
    """Samples of one object, the oldest first; only those that differ from the one before."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MOST))

    def add(self, inference: TPUInference, now: datetime) -> None:
        """Take note of how it stands."""
        new = sample(inference, now)
        if not self.samples or self.samples[-1]._replace(time=now) != new:
            self.samples.append(new)


def sample(inference: TPUInference, now: datetime) -> Sample:
    """How a TPUInference stands."""
    status = inference.status
    found: dict[str, dict[str, int]] = {role.name: {} for role in status.roles}
    for revision in status.revisions:
        for role in revision.roles:
            if role.ready:
                found.setdefault(role.name, {})[revision.name] = role.ready
    hold = status.rollout.hold
    return Sample(now, found, str(hold.gate) if hold else "")


def revisions(samples: Sequence[Sample]) -> list[str]:
    """Revisions that had ready replicas, in the order in which they first had some."""
    names = (name for one in samples for counts in one.ready.values() for name in counts)
    return list(dict.fromkeys(names))
