"""The gate: no process of a job starts before all hosts of the same attempt are there.

Frameworks that start alone wait for each other in native code, where nothing says whom they miss. So the
launchers meet first. Each host asks the launcher of the first host and is held there by long poll until
everybody has come: two requests for each host, whatever their number.

There are two stages. A host first says that it is there. When all are, and so all DNS records exist, each
looks up the names in TPU_WORKER_HOSTNAMES. Only when that has worked everywhere does the gate open. Looking
up before would put a "no such name" into the name servers' caches for as long as 30 seconds.

Where restarts happen in place, hosts meet again and again. Each opening has a number, the attempt, which is
higher than all that any of the hosts has seen. It is over as soon as one host says that it has failed or has
to come again; the others are told, stop their processes, and come too. A host only runs an attempt that was
opened to it, and the next one is only opened to hosts that run nothing: two attempts never run side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Optional

from tpu_runtime import http
from tpu_runtime.aio import within

JOIN = "/gate/join"
WATCH = "/gate/watch"
ENDED = "/gate/ended"
PATHS = (JOIN, WATCH, ENDED)

ARRIVED = "arrived"
RESOLVED = "resolved"
STAGES = (ARRIVED, RESOLVED)

OPEN = "open"
WAITING = "waiting"
RETRY = "retry"
STALE = "stale"
CONFLICT = "conflict"
OVER = "over"
DONE = "done"
STAY = "stay"
LEAVE = "leave"

HOLD_SECONDS = 20.0
SHOWN = 10
HEAD = (-1, 0)
"""Slice and host of the pod without TPUs that some jobs have."""


@dataclass(frozen=True)
class Member:
    """What a host says of itself.

    Attributes:
        job: kind, namespace, name and UID of the job.
        attempt: the attempt that its pod was made for.
        slice_index: its slice.
        host: its index in the slice.
        worker_id: its TPU_WORKER_ID.
        hostnames: checksum of its TPU_WORKER_HOSTNAMES, which must be the same on all hosts of a slice.
        boot: changes with every start of a launcher.
        least: the least attempt that it may run, since all before it are over on this host.
        shape: what it takes the job's slices for.
        build: which launcher it has.
    """

    job: str
    attempt: int
    slice_index: int
    host: int
    worker_id: int
    hostnames: int
    boot: str
    least: int = 0
    shape: str = ""
    build: str = ""


@dataclass(frozen=True)
class Failed:
    """How the processes of a host have failed.

    Attributes:
        time: when, in epoch seconds.
        code: the exit code of the launcher.
        cause: one of the causes of contract A2.
        error: the line that says most.
    """

    time: float
    code: int = 1
    cause: str = ""
    error: str = ""


@dataclass(frozen=True)
class Answer:
    """What the gate says to a host.

    Attributes:
        state: open, waiting (ask again), retry (ask again later), stale or conflict (give up), over (that
            attempt is), done (the host that keeps the gate has ended well, or the one whose end is
            everybody's, and nobody can start again here), stay or leave (another host has failed before this
            one, or none has).
        detail: for people.
        missing: some of the hosts that are waited for, as (slice, host).
        missing_count: how many there are.
        attempt: the attempt that is open, or over.
        failed: the failure for which it is over, if that has said anything.
    """

    state: str
    detail: str = ""
    missing: tuple[tuple[int, int], ...] = ()
    missing_count: int = 0
    attempt: int = 0
    failed: Optional[Failed] = None


class _Stage:
    def __init__(self, hosts: set[tuple[int, int]]) -> None:
        self.missing = hosts
        self.complete = asyncio.Event()

    def add(self, host: tuple[int, int]) -> None:
        self.missing.discard(host)
        if not self.missing:
            self.complete.set()

    def remove(self, host: tuple[int, int]) -> None:
        if not self.complete.is_set():
            self.missing.add(host)


class _Meeting:
    """One attempt, from the first host that comes for it to the last that knows that it is over."""

    def __init__(self, attempt: int, hosts: frozenset[tuple[int, int]]) -> None:
        self.attempt = attempt
        self.stages = {stage: _Stage(set(hosts)) for stage in STAGES}
        self.unanswered = _Stage(set(hosts))
        self.untold = _Stage(set(hosts))
        self.news = asyncio.Event()
        self.done = False
        self.first_failure: Optional[tuple[float, tuple[int, int]]] = None
        self.failed: Optional[Failed] = None

    @property
    def is_open(self) -> bool:
        return not self.stages[RESOLVED].missing

    def end(self) -> Answer:
        """What those are told who run it once it is over."""
        if self.done:
            return Answer(DONE, attempt=self.attempt)
        if self.failed is None or self.first_failure is None or not self.failed.error:
            return Answer(OVER, attempt=self.attempt)
        return Answer(OVER, title(self.first_failure[1]), attempt=self.attempt, failed=self.failed)


class Gate:
    """The gate of some slices, kept by the launcher of the first host.

    Args:
        job: what their members say of their job.
        attempt: the attempt that their pods were made for.
        slices: slices that meet here.
        hosts_per_slice: hosts of each.
        in_place: they meet again when one has failed.
        leader: the host whose good end is everybody's, if there is one; HEAD meets here only if it is that.

    Attributes:
        superseded: set when a host of a newer attempt has asked: this launcher's attempt is over.
    """

    def __init__(
        self,
        job: str,
        attempt: int,
        slices: range,
        hosts_per_slice: int,
        *,
        in_place: bool = False,
        leader: Optional[tuple[int, int]] = None,
    ) -> None:
        workers = frozenset((index, host) for index in slices for host in range(hosts_per_slice))
        self._job = job
        self._attempt = attempt
        self._in_place = in_place
        self._leader = leader
        self._hosts = workers | {HEAD} if leader == HEAD else workers
        self._meeting = _Meeting(attempt, self._hosts)
        self._last = _Meeting(attempt - 1, self._hosts)
        self._boots: dict[tuple[int, int], str] = {}
        self._workers: dict[tuple[int, int], tuple[int, int]] = {}
        self._lists: dict[int, tuple[int, int]] = {}
        self._common: dict[str, tuple[str, tuple[int, int]]] = {}
        self.superseded = asyncio.Event()

    async def join(self, member: Member, stage: str, hold: float) -> Answer:
        """Let a host report a stage; returns when all hosts have reported it, or after `hold` seconds.

        When cancelled, the host has gone away and counts as missing again.
        """
        refusal = self._refusal(member) or self._renewal(member)
        if refusal:
            return refusal
        host, meeting = _place(member), self._meeting
        if self._boots.get(host) not in {None, member.boot}:
            _forget(meeting, host)  # what an earlier launcher of the same host has reported
        self._boots[host] = member.boot
        current = meeting.stages[stage]
        for done in STAGES[: STAGES.index(stage) + 1]:  # a launcher before us may have heard the earlier one
            meeting.stages[done].add(host)
        try:
            if not current.complete.is_set():
                await within(hold, current.complete.wait())
        except asyncio.TimeoutError:
            pass
        except asyncio.CancelledError:
            if self._boots.get(host) == member.boot:
                _forget(meeting, host)
            raise
        if current.missing:
            return _waiting(current)
        if stage == RESOLVED:
            meeting.unanswered.add(host)
        return Answer(OPEN, attempt=meeting.attempt)

    async def watch(self, member: Member, attempt: int, hold: float) -> Answer:
        """Tell a host that runs an attempt when it is over; "open" when it is not after `hold` seconds."""
        refusal = self._refusal(member)
        if refusal:
            return refusal
        meeting = self._meeting
        if meeting.is_open and meeting.attempt == attempt:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(hold, meeting.news.wait())
            if not meeting.news.is_set():
                return Answer(OPEN, attempt=attempt)
            meeting.untold.add(_place(member))
            return meeting.end()
        if self._last.attempt == attempt:
            self._last.untold.add(_place(member))
            return self._last.end()
        return Answer(OVER, attempt=attempt)

    def ended(self, member: Member, attempt: int, failed: Optional[Failed]) -> Answer:
        """Take note that the processes of a host have ended.

        Args:
            member: the host.
            attempt: the attempt that it ran.
            failed: how a process failed by itself; None if all ended well.

        Returns:
            "stay" to a host that ended after another one had failed: it need not tell anybody else.
        """
        refusal = self._refusal(member)
        meeting = self._meeting if self._meeting.is_open else self._last
        if refusal or meeting.attempt != attempt:
            return refusal or Answer(LEAVE)
        host = _place(member)
        meeting.untold.add(host)
        if failed is None:
            if host == self._leader and meeting is self._meeting:
                meeting.done = True
                meeting.news.set()
            return Answer(STAY if meeting is self._last else LEAVE)
        echo = meeting.first_failure is not None and meeting.first_failure < (failed.time, host)
        if not echo:
            meeting.first_failure, meeting.failed = (failed.time, host), failed
        if meeting is self._meeting:
            self._end()
        return Answer(STAY if echo else LEAVE)

    def close(self) -> None:
        """Give up: tell all who wait whom we have been waiting for."""
        for stage in self._meeting.stages.values():
            stage.complete.set()

    async def all_answered(self, seconds: float) -> None:
        """Wait until every host knows that the gate is open: who asks after we are gone waits for ever."""
        if self._meeting.stages[RESOLVED].complete.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await within(seconds, self._meeting.unanswered.complete.wait())

    async def all_told(self, seconds: float) -> None:
        """Wait until every host knows that we go: who finds nobody here takes us for dead."""
        meeting = self._meeting if self._meeting.is_open else self._last
        if meeting is self._meeting:
            meeting.done = True
            meeting.news.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(seconds, meeting.untold.complete.wait())

    def _end(self) -> None:
        """The open attempt is over, everywhere; the next one has a higher number."""
        self._last = self._meeting
        self._last.news.set()
        self._meeting = _Meeting(self._last.attempt + 1, self._hosts)

    def _renewal(self, member: Member) -> Optional[Answer]:
        """Agree on the number of the attempt with a host that comes; the answer if it has to come again.

        A host that was told that an attempt is open must not be taken for one that comes for the next, as it
        may run the first: it has to say that it knows that it is over.
        """
        if not self._in_place:
            return None
        another = self._boots.get(_place(member)) != member.boot
        if self._meeting.is_open and (another or member.least > self._meeting.attempt):
            self._end()
        if member.least <= self._last.attempt:
            return Answer(OVER, attempt=self._last.attempt)
        self._meeting.attempt = max(self._meeting.attempt, member.least)
        return None

    def _refusal(self, member: Member) -> Optional[Answer]:
        if member.job != self._job:
            return Answer(RETRY, f"this is the gate of {self._job}, not of {member.job}")
        if member.attempt < self._attempt:
            return Answer(STALE, f"attempt {member.attempt} is over, this is attempt {self._attempt}")
        if member.attempt > self._attempt:
            self.superseded.set()
            return Answer(RETRY, f"this host is still at attempt {self._attempt}")
        if _place(member) not in self._hosts:
            return Answer(CONFLICT, f"no {title(_place(member))} meets here")
        return self._conflict(member)

    def _conflict(self, member: Member) -> Optional[Answer]:
        """Hosts that do not agree on who is who, or what the job is, would build it wrongly, or never."""
        host = _place(member)
        for what, value in (("slices", member.shape), ("launcher", member.build)):
            known, where = self._common.setdefault(what, (value, host))
            if known != value:
                both = f"{title(host)} has {value or 'none'}, {title(where)} has {known or 'none'}"
                return Answer(CONFLICT, f"{what}: {both}")
        twin = self._workers.setdefault((member.slice_index, member.worker_id), host)
        if twin != host:
            return Answer(CONFLICT, f"TPU_WORKER_ID={member.worker_id} is also that of {title(twin)}")
        names, first = self._lists.setdefault(member.slice_index, (member.hostnames, member.host))
        if names != member.hostnames:
            return Answer(
                CONFLICT, f"TPU_WORKER_HOSTNAMES differs from that of {title((member.slice_index, first))}"
            )
        return None


def _forget(meeting: _Meeting, host: tuple[int, int]) -> None:
    for stage in meeting.stages.values():
        stage.remove(host)


def _waiting(stage: _Stage) -> Answer:
    return Answer(WAITING, missing=tuple(islice(stage.missing, SHOWN)), missing_count=len(stage.missing))


def _place(member: Member) -> tuple[int, int]:
    return member.slice_index, member.host


def title(host: tuple[int, int]) -> str:
    """A host in words."""
    return "the head" if host == HEAD else f"slice {host[0]} host {host[1]}"


async def answer_request(gate: Optional[Gate], path: str, body: bytes) -> http.Response:
    """Answer a request to one of PATHS; `gate` is None on hosts that keep none."""
    try:
        value = json.loads(body)
        member = _parse_member(value["member"])
        asked = _QUESTIONS[path](value)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return http.json_response(400, {"error": f"not a request to {path}: {error!r}"})
    if gate is None:
        return http.json_response(200, asdict(Answer(RETRY, "this host does not keep the gate")))
    return http.json_response(200, asdict(await _ask(gate, path, member, asked)))


async def _ask(gate: Gate, path: str, member: Member, asked: tuple[Any, Any]) -> Answer:
    if path == JOIN:
        return await gate.join(member, *asked)
    if path == WATCH:
        return await gate.watch(member, *asked)
    return gate.ended(member, *asked)


def _joins(value: dict[str, Any]) -> tuple[str, float]:
    stage = value["stage"]
    if stage not in STAGES:
        raise ValueError(f"unknown stage {stage!r}")
    return stage, _hold(value)


def _watches(value: dict[str, Any]) -> tuple[int, float]:
    return _attempt(value), _hold(value)


def _ends(value: dict[str, Any]) -> tuple[int, Optional[Failed]]:
    return _attempt(value), parse_failed(value["failed"])


_QUESTIONS = {JOIN: _joins, WATCH: _watches, ENDED: _ends}


def parse_failed(value: Any) -> Optional[Failed]:
    """A failure that was told.

    Raises:
        TypeError: it is none.
    """
    if value is None:
        return None
    failed = Failed(**value)
    kinds = [isinstance(failed.time, (int, float)), type(failed.code) is int]
    if not all([*kinds, isinstance(failed.cause, str), isinstance(failed.error, str)]):
        raise TypeError("this is not how a process fails")
    return failed


def _hold(value: dict[str, Any]) -> float:
    hold = float(value["hold"])
    if not 0 <= hold <= HOLD_SECONDS:
        raise ValueError("hold is out of range")
    return hold


def _attempt(value: dict[str, Any]) -> int:
    attempt = value["attempt"]
    if type(attempt) is not int:
        raise TypeError("attempt is not a whole number")
    return attempt


def _parse_member(value: dict[str, Any]) -> Member:
    member = Member(**value)
    numbers = (
        member.attempt,
        member.slice_index,
        member.host,
        member.worker_id,
        member.hostnames,
        member.least,
    )
    if [type(n) for n in numbers] != [int] * len(numbers):
        raise TypeError("a number is not a whole number")
    if not all(isinstance(text, str) for text in (member.job, member.boot, member.shape, member.build)):
        raise TypeError("what is no number is no string")
    return member
