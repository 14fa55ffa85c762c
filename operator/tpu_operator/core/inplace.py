"""Restarts in place: the launchers start the attempts, here they are counted (docs/adr/0006).

Kubelets start containers again that have failed. What is left of such a failure is the status of the
container: how often it was started again, and how its last lives ended. The launcher's report has the number
of the attempt, so that a failure is new if and only if no later attempt is on record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpu_operator.core import failures, names
from tpu_operator.core.numbers import whole
from tpu_operator.core.report import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from tpu_operator.api import Failure
    from tpu_operator.core.slicegroup import Gang
    from tpu_operator.core.snapshot import ContainerStatus, Pod, Terminated

ECHO_SECONDS: Final = 10.0
"""For so long after a failure, or `coalesceSeconds` if that is more, what has no number is an echo of it.

Kubelets tell the end of a container in whole seconds, and clocks differ.
"""
SECONDS: Final = 60.0
"""How long a gang may take to be ready again in its pods, beside their grace period."""


@dataclass(frozen=True, slots=True)
class _End:
    """The end of one life of a container.

    Attributes:
        attempt: the attempt that ended so, None where the launcher has left no word.
        least: the first attempt that it can have been.
        failure: what is known of it.
    """

    attempt: int | None
    least: int
    failure: Failure


def new_failures(gang: Gang, coalesce: float, now: datetime) -> list[Failure]:
    """Failures of the gang's present attempt in pods that go on.

    Where later attempts have failed too, and no word of the present one is left, theirs stand for it.

    Args:
        gang: the gang.
        coalesce: seconds for which failures of the gang are one.
        now: the time.
    """
    found = [
        (_number(end, gang), end.failure)
        for end in _ends(gang.current, now, gang.number)
        if _new(end, gang, coalesce)
    ]
    lowest = min((number for number, _ in found), default=0)
    return [_at(failure, gang.number) for number, failure in found if number == lowest]


def known_failures(gang: Gang, last: Failure, coalesce: float, now: datetime) -> list[Failure]:
    """Failures of the attempt of a failure on record, in pods whose containers were started again."""
    ends = _ends(gang.pods.values(), now, gang.number)
    return [_at(end.failure, last.attempt) for end in ends if _belongs(end, last, coalesce)]


def is_echo(failure: Failure, last: Failure, coalesce: float) -> bool:
    """Whether a failure that has no number belongs to the one on record."""
    return _seconds_after(failure, last) <= max(coalesce, ECHO_SECONDS)


def possible(gang: Gang, revision: str) -> bool:
    """Whether the gang can start again in its pods, all of which are there and made from that revision.

    A host that has ended well is not started again by its kubelet.
    """
    whole_gang = gang.started and not gang.absent and not gang.done and not gang.outdated(revision)
    workers = [pod for pod in gang.current if not _is_head(pod)]
    return (
        whole_gang
        and all(pod.restartable for pod in workers)
        and not any(gang.is_done(pod) for pod in gang.current)
    )


def late(gang: Gang, now: datetime) -> bool:
    """Whether a restart in place has taken too long."""
    return gang.in_place_under_way and _left(gang, now) <= 0


def left(gang: Gang, now: datetime) -> float | None:
    """Seconds until a restart in place has taken too long; None once it has, and if none is under way."""
    seconds = _left(gang, now)
    return seconds if gang.in_place_under_way and seconds > 0 else None


def restarts(pods: Iterable[Pod], now: datetime) -> int:
    """Restarts in place up to now, as the pods of one attempt tell where no status does."""
    pods = list(pods)
    numbers = [_first(pod) for pod in pods if not _is_head(pod)]
    numbers += [(end.least if end.attempt is None else end.attempt) + 1 for end in _ends(pods, now)]
    return max((number - pods[0].attempt for number in numbers), default=0)


def _left(gang: Gang, now: datetime) -> float:
    grace = max((pod.spec.termination_grace_period_seconds for pod in gang.current), default=0)
    return SECONDS + grace - (now - (gang.in_place_since or now)).total_seconds()


def _at(failure: Failure, attempt: int) -> Failure:
    return failure.model_copy(update={"attempt": attempt})


def _number(end: _End, gang: Gang) -> int:
    return max(end.least, gang.number) if end.attempt is None else end.attempt


def _new(end: _End, gang: Gang, coalesce: float) -> bool:
    if end.attempt is not None:
        return end.attempt >= gang.number
    if end.least >= gang.number or gang.last is None:
        return end.least >= gang.number
    return not is_echo(end.failure, gang.last, coalesce)


def _belongs(end: _End, last: Failure, coalesce: float) -> bool:
    if end.attempt is not None:
        return end.attempt == last.attempt
    near = is_echo(end.failure, last, coalesce) and is_echo(last, end.failure, coalesce)
    return end.least <= last.attempt and near


def _seconds_after(one: Failure, other: Failure) -> float:
    if one.time is None or other.time is None:
        return 0.0
    return (one.time - other.time).total_seconds()


def _ends(pods: Iterable[Pod], now: datetime, recorded: int = 0) -> list[_End]:
    """Ends of lives of the main containers, in pods whose kubelets start them again.

    Each attempt ends at least one container, so no number can be larger than the ends that there were. Pods
    in which some were may be gone: attempts before `recorded`, which are on record, are over in any case.
    """
    lives = [(pod, main, life) for pod in pods if (main := _main(pod)) for life in _lives(pod, main)]
    ends: dict[str, int] = {}
    for pod, _, (ordinal, _) in lives:
        ends[pod.name] = max(ends.get(pod.name, 0), ordinal)
    return [
        end
        for pod, main, (ordinal, ended) in lives
        for end in _told(pod, main, ordinal, ended, max(recorded, _first(pod) + sum(ends.values())), now)
    ]


def _told(
    pod: Pod, main: ContainerStatus, ordinal: int, ended: Terminated, most: int, now: datetime
) -> Iterator[_End]:
    """What the end of one life tells, of itself and of those before."""
    least = _first(pod) + ordinal - 1
    report = read(ended.message)
    attempt = report.attempt if report else None
    said = attempt if attempt is not None and _first(pod) <= attempt < most else None
    yield _End(said, least, failures.container_failure(pod, main, ended, now))
    for before in report.earlier if report else ():
        if _first(pod) <= before.attempt < (said or 0):
            yield _End(before.attempt, before.attempt, failures.earlier_failure(pod, main, before, now))


def _main(pod: Pod) -> ContainerStatus | None:
    """The container of a pod that its kubelet starts again; none where nothing has ended."""
    main = pod.main if pod.spec.restart_policy == "OnFailure" and not _is_head(pod) else None
    return main if main and (main.last_state.terminated or main.state.terminated) else None


def _lives(pod: Pod, main: ContainerStatus) -> Iterator[tuple[int, Terminated]]:
    """Lives of a container that have failed, with their numbers, counted from 1.

    A kubelet counts a restart when it makes it, and shows the life before as the last one from when it waits
    to make it. How a container ends that is taken away with its pod is the pod's affair.
    """
    state, last = main.state.terminated, main.last_state.terminated
    if last and last.exit_code:
        yield main.restart_count + (1 if main.state.waiting else 0), last
    if state and state.exit_code and pod.restartable:
        yield main.restart_count + 1, state


def _first(pod: Pod) -> int:
    """The attempt that a pod was made for."""
    number = whole(pod.metadata.labels.get(names.LABEL_FIRST_ATTEMPT))
    return pod.attempt if number is None else number


def _is_head(pod: Pod) -> bool:
    return pod.metadata.labels.get(names.LABEL_COMPONENT) == names.HEAD
