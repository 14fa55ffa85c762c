"""A host at the gate: on its way through it, and while its processes run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
import zlib
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Protocol

from tpu_runtime import http
from tpu_runtime.aio import within
from tpu_runtime.bundle import build
from tpu_runtime.errors import EXIT_ENVIRONMENT, EXIT_PEERS, EXIT_STALE, STARTUP_TIMEOUT, LaunchError
from tpu_runtime.gate import (
    ARRIVED,
    CONFLICT,
    ENDED,
    HEAD,
    HOLD_SECONDS,
    JOIN,
    OPEN,
    OVER,
    RESOLVED,
    RETRY,
    SHOWN,
    STALE,
    WAITING,
    WATCH,
    Answer,
    Failed,
    Gate,
    Member,
    parse_failed,
    title,
)
from tpu_runtime.names import MOST_SECONDS, Resolver, backoff, resolve

if TYPE_CHECKING:
    from tpu_runtime.environment import HostEnvironment

_SLACK_SECONDS = 10.0
_NEWS_SECONDS = 30.0
_IN_PLACE_SECONDS = 1.0
_ENDED_SECONDS = 5.0


class Door(Protocol):
    """The gate as a host sees it, from near or far.

    Attributes:
        member: the host.
    """

    member: Member

    async def join(self, stage: str, hold: float) -> Answer:
        """Report a stage and wait up to `hold` seconds for all others."""

    async def watch(self, attempt: int, hold: float) -> Answer:
        """Wait up to `hold` seconds for the end of an attempt anywhere."""

    async def ended(self, attempt: int, failed: Optional[Failed]) -> Answer:
        """Report that the processes of this host have ended."""


@dataclass
class LocalDoor:
    """The gate for the host that keeps it."""

    gate: Gate
    member: Member

    async def join(self, stage: str, hold: float) -> Answer:
        """Report a stage; stale when a newer attempt has been seen."""
        joining = asyncio.ensure_future(self.gate.join(self.member, stage, hold))
        superseded = asyncio.ensure_future(self.gate.superseded.wait())
        try:
            await asyncio.wait({joining, superseded}, return_when=asyncio.FIRST_COMPLETED)
            if superseded.done():
                return Answer(STALE, f"a host of a newer attempt than {self.member.attempt} has come")
            return joining.result()
        finally:
            joining.cancel()
            superseded.cancel()

    async def watch(self, attempt: int, hold: float) -> Answer:
        """Wait for the end of an attempt."""
        return await self.gate.watch(self.member, attempt, hold)

    async def ended(self, attempt: int, failed: Optional[Failed]) -> Answer:
        """Report that the processes of this host have ended."""
        return self.gate.ended(self.member, attempt, failed)


@dataclass
class RemoteDoor:
    """The gate for all other hosts.

    Attributes:
        coordinator: name and port of the launcher that keeps the gate.
        member: this host.
    """

    coordinator: tuple[str, int]
    member: Member

    async def join(self, stage: str, hold: float) -> Answer:
        """Report a stage.

        Raises:
            OSError: the coordinator's name is not known, or it did not answer as it should.
        """
        return await self._ask(JOIN, hold + _SLACK_SECONDS, stage=stage, hold=hold)

    async def watch(self, attempt: int, hold: float) -> Answer:
        """Wait for the end of an attempt.

        Raises:
            OSError: as for `join`; ConnectionRefusedError if there is no launcher any more.
        """
        return await self._ask(WATCH, hold + _SLACK_SECONDS, attempt=attempt, hold=hold)

    async def ended(self, attempt: int, failed: Optional[Failed]) -> Answer:
        """Report that the processes of this host have ended.

        Raises:
            OSError: as for `join`.
        """
        told = None if failed is None else asdict(failed)
        return await self._ask(ENDED, _ENDED_SECONDS, attempt=attempt, failed=told)

    async def _ask(self, path: str, seconds: float, **question: Any) -> Answer:
        name, port = self.coordinator
        body = {"member": asdict(self.member), **question}
        status, answer = await http.post_json((await resolve(name), port), path, body, seconds)
        parsed = _parse_answer(answer)
        if status != HTTPStatus.OK or parsed is None:
            raise http.ProtocolError(f"unexpected answer {status}: {json.dumps(answer)[:200]}")
        return parsed


def _parse_answer(value: Any) -> Optional[Answer]:
    if not isinstance(value, dict) or not isinstance(value.get("state"), str):
        return None
    missing = value.get("missing")
    hosts = [h for h in missing if _is_pair(h)] if isinstance(missing, list) else []
    count, attempt = value.get("missing_count"), value.get("attempt")
    failed: Optional[Failed] = None
    with contextlib.suppress(TypeError):
        failed = parse_failed(value.get("failed"))
    return Answer(
        state=value["state"],
        detail=str(value.get("detail", ""))[:500],
        missing=tuple((h[0], h[1]) for h in hosts),
        missing_count=count if isinstance(count, int) else len(hosts),
        attempt=attempt if isinstance(attempt, int) else 0,
        failed=failed,
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and [type(item) for item in value] == [int, int]


def this_member(env: HostEnvironment, least: int) -> Member:
    """What this host says of itself.

    Args:
        env: the host.
        least: the least attempt that it may run.
    """
    return Member(
        job=env.place.job,
        attempt=env.place.attempt,
        slice_index=env.place.slice_index,
        host=env.place.host,
        worker_id=env.identity.worker_id,
        hostnames=zlib.crc32(",".join(env.identity.hostnames).encode()),
        boot=uuid.uuid4().hex,
        least=least,
        shape=_shape(env),
        build=build(),
    )


def _shape(env: HostEnvironment) -> str:
    """The slices of the job, in words."""
    place, hardware = env.place, env.hardware
    hosts = f"{place.hosts_per_slice} hosts with {hardware.chips_per_host} chips"
    return f"{place.num_slices} x {hardware.accelerator} {hardware.topology}, {hosts}"


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

    async def enter(self) -> int:
        """Return the attempt when the gate is open for it.

        Raises:
            LaunchError: exit code 69 after the time-out, 75 for a host of an old attempt, 64 where hosts
                disagree on who is who.
        """
        end = time.monotonic() + self.env.settings.gate_timeout
        while True:
            answer = await self._pass(ARRIVED, end)
            if answer.state == OPEN:
                await self._resolve(end)
                answer = await self._pass(RESOLVED, end)
            if answer.state == OPEN:
                return answer.attempt
            self.door.member = replace(self.door.member, least=answer.attempt + 1)

    async def _pass(self, stage: str, end: float) -> Answer:
        """The answer when a stage is complete, or has to be begun again for a later attempt."""
        said = time.monotonic()
        delays = self._delays()
        while (left := end - time.monotonic()) > 0:
            asked = time.monotonic()
            answer = await self._ask(stage, min(HOLD_SECONDS, left))
            if answer.state in {OPEN, OVER}:
                return answer
            self._note(stage, answer)
            if time.monotonic() - said > _NEWS_SECONDS:
                said = time.monotonic()
                self.say(f"still waiting at the gate: {self._trouble()}")
            if time.monotonic() - asked > 1:
                delays = self._delays()  # we were held as we should be: ask again at once
            else:
                await asyncio.sleep(min(next(delays), max(0.0, end - time.monotonic())))
        raise self._timeout(self._trouble())

    def _delays(self) -> Iterator[float]:
        """A coordinator whose container is restarted is back within seconds."""
        longest = _IN_PLACE_SECONDS if self.env.settings.in_place else MOST_SECONDS
        return backoff(most=longest, askers=self.env.place.num_met)

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
            hosts = f"{answer.missing_count} of {self.env.place.num_met} hosts"
            self._absent, self._unreached = f"{hosts} {verb}: {self._hosts(answer)}", ""
        else:
            name, port = self.env.coordinator
            self._unreached = (
                f"{title((self.env.place.met.start, 0))} ({name}:{port}) does not answer: {answer.detail}"
            )

    def _trouble(self) -> str:
        return ", and then ".join(filter(None, (self._absent, self._unreached))) or "no answer yet"

    def _hosts(self, answer: Answer) -> str:
        shown = [self._host(host) for host in sorted(answer.missing)]
        more = answer.missing_count - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")

    def _host(self, host: tuple[int, int]) -> str:
        """Title of a host, with its DNS name in our own slice, and with its pod's name in others."""
        identity, place = self.env.identity, self.env.place
        if host == HEAD:
            return f"{title(host)} ({place.name}-head)"
        position = host[1] * identity.containers
        if host[0] == place.slice_index and position < len(identity.hostnames):
            return f"{title(host)} ({identity.hostnames[position]})"
        return f"{title(host)} ({place.name}-{host[0]}-{host[1]})"

    async def _resolve(self, end: float) -> None:
        resolver = Resolver(self.env.identity.hostnames)
        try:
            await within(max(0.0, end - time.monotonic()), resolver.run())
        except asyncio.TimeoutError:
            found = [f"{name} ({error})" for name, error in islice(resolver.missing.items(), SHOWN)]
            more = len(resolver.missing) - len(found)
            text = ", ".join(found) + (f" and {more} more" if more > 0 else "")
            raise self._timeout(f"names in TPU_WORKER_HOSTNAMES that do not resolve: {text}") from None

    def _timeout(self, trouble: str) -> LaunchError:
        seconds = self.env.settings.gate_timeout
        return LaunchError(f"gate timed out after {seconds:g} s: {trouble}", EXIT_PEERS, STARTUP_TIMEOUT)
