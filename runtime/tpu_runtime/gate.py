"""The gate: no process of a job starts before all hosts of the same attempt are there.

Frameworks that start alone wait for each other in native code, where nothing says whom they miss. So the
launchers meet first. Each host asks the launcher of slice 0, host 0 and is held there by long poll until
everybody has come: two requests for each host, whatever their number.

There are two stages. A host first says that it is there. When all are, and so all DNS records exist, each
looks up the names in TPU_WORKER_HOSTNAMES. Only when that has worked everywhere does the gate open. Looking
up before would put a "no such name" into the name servers' caches for as long as 30 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
import zlib
from dataclasses import asdict, dataclass
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol

from tpu_runtime import http
from tpu_runtime.aio import within
from tpu_runtime.errors import EXIT_ENVIRONMENT, EXIT_PEERS, EXIT_STALE, STARTUP_TIMEOUT, LaunchError
from tpu_runtime.names import Resolver, backoff, resolve

if TYPE_CHECKING:
    from tpu_runtime.environment import HostEnvironment

PATH = "/gate/join"
ARRIVED = "arrived"
RESOLVED = "resolved"
STAGES = (ARRIVED, RESOLVED)

OPEN = "open"
WAITING = "waiting"
RETRY = "retry"
STALE = "stale"
CONFLICT = "conflict"

_HOLD_SECONDS = 20.0
_SLACK_SECONDS = 10.0
_SHOWN = 10
_NEWS_SECONDS = 30.0


@dataclass(frozen=True)
class Member:
    """What a host says of itself.

    Attributes:
        job: kind, namespace, name and UID of the job.
        attempt: the attempt that it belongs to.
        slice_index: its slice.
        host: its index in the slice.
        worker_id: its TPU_WORKER_ID.
        hostnames: checksum of its TPU_WORKER_HOSTNAMES, which must be the same on all hosts of a slice.
        boot: changes with every start of a launcher.
    """

    job: str
    attempt: int
    slice_index: int
    host: int
    worker_id: int
    hostnames: int
    boot: str


@dataclass(frozen=True)
class Answer:
    """What the gate says to a host.

    Attributes:
        state: open, waiting (ask again), retry (ask again later), stale or conflict (give up).
        detail: for people.
        missing: some of the hosts that are waited for, as (slice, host).
        missing_count: how many there are.
    """

    state: str
    detail: str = ""
    missing: tuple[tuple[int, int], ...] = ()
    missing_count: int = 0


class Door(Protocol):
    """The gate as a host sees it, from near or far."""

    async def join(self, stage: str, hold: float) -> Answer:
        """Report a stage and wait up to `hold` seconds for all others."""


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


class Gate:
    """The gate of a job, kept by the launcher of slice 0, host 0.

    Attributes:
        superseded: set when a host of a newer attempt has asked: this launcher's attempt is over.
    """

    def __init__(self, job: str, attempt: int, num_slices: int, hosts_per_slice: int) -> None:
        hosts = [(index, host) for index in range(num_slices) for host in range(hosts_per_slice)]
        self._job = job
        self._attempt = attempt
        self._hosts = frozenset(hosts)
        self._stages = {stage: _Stage(set(hosts)) for stage in STAGES}
        self._boots: dict[tuple[int, int], str] = {}
        self._workers: dict[tuple[int, int], tuple[int, int]] = {}
        self._lists: dict[int, tuple[int, int]] = {}
        self._unanswered = _Stage(set(hosts))
        self.superseded = asyncio.Event()

    async def join(self, member: Member, stage: str, hold: float) -> Answer:
        """Let a host report a stage; returns when all hosts have reported it, or after `hold` seconds.

        When cancelled, the host has gone away and counts as missing again.
        """
        refusal = self._refusal(member)
        if refusal:
            return refusal
        host = (member.slice_index, member.host)
        self._enter(host, member.boot)
        current = self._stages[stage]
        for done in STAGES[: STAGES.index(stage) + 1]:  # a launcher before us may have heard the earlier one
            self._stages[done].add(host)
        try:
            if not current.complete.is_set():
                await within(hold, current.complete.wait())
        except asyncio.TimeoutError:
            pass
        except asyncio.CancelledError:
            if self._boots.get(host) == member.boot:
                self._forget(host)
            raise
        if current.missing:
            return self._waiting(current)
        if stage == RESOLVED:
            self._unanswered.add(host)
        return Answer(OPEN)

    def close(self) -> None:
        """Give up: tell all who wait whom we have been waiting for."""
        for stage in self._stages.values():
            stage.complete.set()

    async def all_answered(self, seconds: float) -> None:
        """Wait until every host knows that the gate is open: who asks after we are gone waits for ever."""
        if self._stages[RESOLVED].complete.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await within(seconds, self._unanswered.complete.wait())

    def _refusal(self, member: Member) -> Optional[Answer]:
        if member.job != self._job:
            return Answer(RETRY, f"this is the gate of {self._job}, not of {member.job}")
        if member.attempt < self._attempt:
            return Answer(STALE, f"attempt {member.attempt} is over, this is attempt {self._attempt}")
        if member.attempt > self._attempt:
            self.superseded.set()
            return Answer(RETRY, f"this host is still at attempt {self._attempt}")
        if (member.slice_index, member.host) not in self._hosts:
            return Answer(CONFLICT, f"the job has no slice {member.slice_index} host {member.host}")
        return self._conflict(member)

    def _conflict(self, member: Member) -> Optional[Answer]:
        """Hosts of a slice that do not agree on who is who would build it wrongly, or never."""
        host = (member.slice_index, member.host)
        twin = self._workers.setdefault((member.slice_index, member.worker_id), host)
        if twin != host:
            return Answer(CONFLICT, f"TPU_WORKER_ID={member.worker_id} is also that of {_title(twin)}")
        names, first = self._lists.setdefault(member.slice_index, (member.hostnames, member.host))
        if names != member.hostnames:
            return Answer(
                CONFLICT, f"TPU_WORKER_HOSTNAMES differs from that of {_title((member.slice_index, first))}"
            )
        return None

    def _enter(self, host: tuple[int, int], boot: str) -> None:
        """Forget what an earlier launcher of the same host has reported."""
        if self._boots.get(host) not in {None, boot}:
            self._forget(host)
        self._boots[host] = boot

    def _forget(self, host: tuple[int, int]) -> None:
        for stage in self._stages.values():
            stage.remove(host)

    def _waiting(self, stage: _Stage) -> Answer:
        return Answer(WAITING, missing=tuple(islice(stage.missing, _SHOWN)), missing_count=len(stage.missing))


class LocalDoor:
    """The gate for the host that keeps it."""

    def __init__(self, gate: Gate, member: Member) -> None:
        self._gate = gate
        self._member = member

    async def join(self, stage: str, hold: float) -> Answer:
        """Report a stage; stale when a newer attempt has been seen."""
        joining = asyncio.ensure_future(self._gate.join(self._member, stage, hold))
        superseded = asyncio.ensure_future(self._gate.superseded.wait())
        try:
            await asyncio.wait({joining, superseded}, return_when=asyncio.FIRST_COMPLETED)
            if superseded.done():
                return Answer(STALE, f"a host of a newer attempt than {self._member.attempt} has come")
            return joining.result()
        finally:
            joining.cancel()
            superseded.cancel()


class RemoteDoor:
    """The gate for all other hosts."""

    def __init__(self, coordinator: tuple[str, int], member: Member) -> None:
        self._coordinator = coordinator
        self._member = member

    async def join(self, stage: str, hold: float) -> Answer:
        """Report a stage.

        Raises:
            OSError: the coordinator's name is not known, or it did not answer as it should.
        """
        name, port = self._coordinator
        body = {"stage": stage, "hold": hold, "member": asdict(self._member)}
        status, answer = await http.post_json((await resolve(name), port), PATH, body, hold + _SLACK_SECONDS)
        parsed = _parse_answer(answer)
        if status != HTTPStatus.OK or parsed is None:
            raise http.ProtocolError(f"unexpected answer {status}: {json.dumps(answer)[:200]}")
        return parsed


def _parse_answer(value: Any) -> Optional[Answer]:
    if not isinstance(value, dict) or not isinstance(value.get("state"), str):
        return None
    missing = value.get("missing")
    hosts = [h for h in missing if _is_pair(h)] if isinstance(missing, list) else []
    count = value.get("missing_count")
    return Answer(
        state=value["state"],
        detail=str(value.get("detail", ""))[:500],
        missing=tuple((h[0], h[1]) for h in hosts),
        missing_count=count if isinstance(count, int) else len(hosts),
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and [type(item) for item in value] == [int, int]


async def answer_request(gate: Optional[Gate], body: bytes) -> http.Response:
    """Answer a request to join; `gate` is None on hosts that keep none."""
    try:
        value = json.loads(body)
        member = _parse_member(value["member"])
        stage, hold = value["stage"], float(value["hold"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return http.json_response(400, {"error": f"not a request to join: {error!r}"})
    if stage not in STAGES or not 0 <= hold <= _HOLD_SECONDS:
        return http.json_response(400, {"error": f"unknown stage {stage!r}, or hold out of range"})
    if gate is None:
        return http.json_response(200, asdict(Answer(RETRY, "this host does not keep the gate")))
    return http.json_response(200, asdict(await gate.join(member, stage, hold)))


def _parse_member(value: dict[str, Any]) -> Member:
    member = Member(**value)
    numbers = (member.attempt, member.slice_index, member.host, member.worker_id, member.hostnames)
    if [type(n) for n in numbers] != [int] * len(numbers):
        raise TypeError("a number is not a whole number")
    if not isinstance(member.job, str) or not isinstance(member.boot, str):
        raise TypeError("job and boot are not strings")
    return member


def this_member(env: HostEnvironment) -> Member:
    """What this host says of itself."""
    return Member(
        job=env.place.job,
        attempt=env.place.attempt,
        slice_index=env.place.slice_index,
        host=env.place.host,
        worker_id=env.identity.worker_id,
        hostnames=zlib.crc32(",".join(env.identity.hostnames).encode()),
        boot=uuid.uuid4().hex,
    )


@dataclass
class Visitor:
    """A host on its way through the gate.

    Attributes:
        env: the host.
        door: the gate.
        say: tells people how it goes.
    """

    env: HostEnvironment
    door: Door
    say: Callable[[str], None]
    _absent: str = ""
    _unreached: str = ""

    async def enter(self) -> None:
        """Return when the gate is open.

        Raises:
            LaunchError: exit code 69 after the time-out, 75 for a host of an old attempt, 64 where hosts
                disagree on who is who.
        """
        end = time.monotonic() + self.env.settings.gate_timeout
        await self._pass(ARRIVED, end)
        await self._resolve(end)
        await self._pass(RESOLVED, end)

    async def _pass(self, stage: str, end: float) -> None:
        said = time.monotonic()
        delays = backoff()
        while (left := end - time.monotonic()) > 0:
            asked = time.monotonic()
            answer = await self._ask(stage, min(_HOLD_SECONDS, left))
            if answer.state == OPEN:
                return
            self._note(stage, answer)
            if time.monotonic() - said > _NEWS_SECONDS:
                said = time.monotonic()
                self.say(f"still waiting at the gate: {self._trouble()}")
            if time.monotonic() - asked > 1:
                delays = backoff()  # we were held as we should be: ask again at once
            else:
                await asyncio.sleep(min(next(delays), max(0.0, end - time.monotonic())))
        raise self._timeout(self._trouble())

    async def _ask(self, stage: str, hold: float) -> Answer:
        try:
            return await self.door.join(stage, hold)
        except OSError as error:
            return Answer(RETRY, str(error) or repr(error))

    def _note(self, stage: str, answer: Answer) -> None:
        """Remember what keeps us waiting; raises where waiting is of no use."""
        if answer.state == STALE:
            raise LaunchError(f"stale attempt: {answer.detail}", EXIT_STALE)
        if answer.state == CONFLICT:
            raise LaunchError(f"the hosts of this job disagree: {answer.detail}", EXIT_ENVIRONMENT)
        if answer.state == WAITING:
            verb = "have not come" if stage == ARRIVED else "cannot resolve all names of their slice"
            hosts = f"{answer.missing_count} of {self.env.place.num_hosts} hosts"
            self._absent, self._unreached = f"{hosts} {verb}: {self._hosts(answer)}", ""
        else:
            name, port = self.env.coordinator
            self._unreached = f"{_title((0, 0))} ({name}:{port}) does not answer: {answer.detail}"

    def _trouble(self) -> str:
        return ", and then ".join(filter(None, (self._absent, self._unreached))) or "no answer yet"

    def _hosts(self, answer: Answer) -> str:
        shown = [self._host(host) for host in sorted(answer.missing)]
        more = answer.missing_count - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")

    def _host(self, host: tuple[int, int]) -> str:
        """Title of a host, with its DNS name in our own slice, and with its pod's name in others."""
        identity, place = self.env.identity, self.env.place
        position = host[1] * identity.containers
        if host[0] == place.slice_index and position < len(identity.hostnames):
            return f"{_title(host)} ({identity.hostnames[position]})"
        return f"{_title(host)} ({place.name}-{host[0]}-{host[1]})"

    async def _resolve(self, end: float) -> None:
        resolver = Resolver(self.env.identity.hostnames)
        try:
            await within(max(0.0, end - time.monotonic()), resolver.run())
        except asyncio.TimeoutError:
            found = [f"{name} ({error})" for name, error in islice(resolver.missing.items(), _SHOWN)]
            more = len(resolver.missing) - len(found)
            text = ", ".join(found) + (f" and {more} more" if more > 0 else "")
            raise self._timeout(f"names in TPU_WORKER_HOSTNAMES that do not resolve: {text}") from None

    def _timeout(self, trouble: str) -> LaunchError:
        seconds = self.env.settings.gate_timeout
        return LaunchError(f"gate timed out after {seconds:g} s: {trouble}", EXIT_PEERS, STARTUP_TIMEOUT)


def _title(host: tuple[int, int]) -> str:
    return f"slice {host[0]} host {host[1]}"
