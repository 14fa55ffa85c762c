"""Restarts in place: whatever the operator misses, and wherever it ends, every attempt is counted once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import NOW, World, ended, job, lives, report

HOSTS = 4
CAUSES = ["UserError", "OutOfMemory", "Hang", "TPUFault"]
FREE = {"TPUFault"}

OPERATOR = st.sampled_from(["", "step", "settle", "crash", "crash after"])
FAILURES = st.lists(
    st.tuples(st.integers(0, HOSTS - 1), st.sampled_from(CAUSES)),
    min_size=1,
    max_size=HOSTS,
    unique_by=lambda failure: failure[0],
)
SHOWN = st.permutations(range(HOSTS))


@dataclass
class Gang:
    """Launchers, and kubelets that show what has become of them in any order.

    Attributes:
        number: the attempt that runs.
        ends: by host, the ends of its container.
        roots: causes of the failures that came first, by attempt.
    """

    world: World
    number: int = 0
    ends: list[list[dict[str, Any]]] = field(default_factory=lambda: [[] for _ in range(HOSTS)])
    told: list[list[dict[str, Any]]] = field(default_factory=lambda: [[] for _ in range(HOSTS)])
    roots: list[str] = field(default_factory=list)

    def fail(self, failures: list[tuple[int, str]]) -> None:
        """Hosts fail in an attempt, one after the other."""
        self.roots.append(failures[0][1])
        for place, (host, cause) in enumerate(failures):
            at = NOW + timedelta(seconds=30 * self.number + place)
            message = report(cause, 1, at, attempt=self.number, earlier=self.told[host][-4:], error="x")
            self.ends[host].append(ended(1, message, at))
            brief = {"attempt": self.number, "cause": cause, "exitCode": 1, "time": at.timestamp()}
            self.told[host].append(brief)

    def show(self, host: int, now: str, *, ready: bool) -> None:
        name = f"train-0-{host}"
        if name in self.world.pods and not self.world.pods[name].deleting:
            now = now if self.ends[host] else "running"
            self.world.set_pod(name, **lives(*self.ends[host], now=now, ready=ready))

    def operate(self, what: str) -> None:
        if what == "step":
            self.world.step()
        elif what == "settle":
            self.world.settle()
        elif what:
            self.world.carry_out(self.world.plan(), 0, status=what == "crash after")


def live(policy: dict[str, Any], attempts: list[Any]) -> Gang:
    """A job whose hosts fail in each of these attempts, and which then runs."""
    world = World(job(failurePolicy={"restartStrategy": "InPlace"} | policy)).run()
    gang = Gang(world)
    for failures, order, states, operator in attempts:
        gang.fail(failures)
        for host, state, what in zip(order, states, operator, strict=False):
            if host in dict(failures):
                gang.show(host, state, ready=False)
            gang.operate(what)
        gang.number += 1
        for host in order:
            gang.show(host, "running", ready=True)
        gang.operate(operator[-1])
        world.now = NOW + timedelta(seconds=30 * gang.number)
    world.settle()
    return gang


ATTEMPTS = st.lists(
    st.tuples(
        FAILURES,
        SHOWN,
        st.lists(st.sampled_from(["terminated", "waiting", "running"]), min_size=HOSTS, max_size=HOSTS),
        st.lists(OPERATOR, min_size=HOSTS + 1, max_size=HOSTS + 1),
    ),
    max_size=5,
)


@given(attempts=ATTEMPTS)
def test_every_attempt_is_counted_once_and_put_down_to_its_first_failure(attempts: list[Any]) -> None:
    gang = live({"maxRestarts": 99}, attempts)
    status = gang.world.job.status
    (only,) = status.slices
    assert (only.attempt, only.restarts_in_place) == (gang.number, gang.number)
    assert status.restarts.total == gang.number
    assert status.restarts.by_cause == Counter(gang.roots)
    assert status.restarts.counted == sum(cause not in FREE for cause in gang.roots)
    assert {pod.attempt for pod in gang.world.pods.values()} == {0}
    assert status.phase == "Running"


@given(attempts=ATTEMPTS, most=st.integers(0, 2))
def test_a_budget_ends_the_job_and_is_never_exceeded(attempts: list[Any], most: int) -> None:
    # Echoes are left out: if one is seen first, and ends the job, its root may come too late.
    gang = live({"maxRestarts": most, "coalesceSeconds": 0}, [(f[:1], *rest) for f, *rest in attempts])
    status = gang.world.job.status
    charged = sum(cause not in FREE for cause in gang.roots)
    phase = "Running" if charged <= most else "Failed"
    assert (status.phase, status.restarts.counted) == (phase, min(charged, most))
