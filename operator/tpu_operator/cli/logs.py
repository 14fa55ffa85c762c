"""`kubectl tpu logs NAME`: what all hosts of a job or a TPUInference have written, in one stream."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpu_operator.api import TPUJob
from tpu_operator.cli import choose, lastwords
from tpu_operator.cli.command import (
    Call,
    Command,
    CommandError,
    Exit,
    Parser,
    add_place,
    add_target,
    number,
    span,
)
from tpu_operator.cli.follow import follow as follow_job
from tpu_operator.cli.follow import follow_inference
from tpu_operator.cli.hosts import brief, place
from tpu_operator.cli.lines import Line, is_missing, merged, missing, render, split
from tpu_operator.cli.server import connect
from tpu_operator.cli.stream import DENIED, Streams
from tpu_operator.cli.text import moment
from tpu_operator.core import names
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Container, Mapping, Sequence

    from tpu_operator.api import Failure, TPUInference
    from tpu_operator.cli.server import Server
    from tpu_operator.cli.text import Terminal
    from tpu_operator.core.snapshot import Pod

AT_ONCE: Final = 16
"""Logs that are read at the same time."""
MOST: Final = 128
"""Hosts that can be followed: each is a connection of its own."""
LAST: Final = 50
"""Lines of the host that failed first."""


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_target(parser)
    choose.add(parser)
    choose.add_roles(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on as they write, and after restarts")
    parser.add_argument("--failed", action="store_true", help="the last lines of the host that failed first")
    parser.add_argument("--previous", action="store_true", help="of containers before their last restart")
    parser.add_argument("-c", "--container", default=names.MAIN_CONTAINER, help="(%(default)s)")
    parser.add_argument("--tail", type=number, metavar="N", help="the last lines of each host; default: all")
    parser.add_argument("--since", type=span, metavar="TIME", help="only what is newer, such as 90s, 5m, 2h")
    parser.add_argument("--timestamps", action="store_true", help="with the time of each line")
    parser.add_argument("--no-prefix", action="store_true", help="without the name of the host")
    add_place(parser)


@dataclass(frozen=True, slots=True)
class Printer:
    """Shows lines.

    Attributes:
        terminal: where they go.
        pods: all hosts that are shown; others that come are added.
        prefix: whether to name the host of each line, where there are several.
        times: whether to show when they were written.
    """

    terminal: Terminal
    pods: list[str]
    prefix: bool = True
    times: bool = False

    def show(self, line: Line) -> None:
        """Show a line."""
        if line.pod not in self.pods:
            self.pods.append(line.pod)
        prefix = self.prefix and len(self.pods) > 1
        self.terminal.write(
            render(line, self.pods, self.terminal.style, prefix=prefix, times=self.times),
        )


def everything(container: str = names.MAIN_CONTAINER) -> dict[str, str]:
    """Parameters of the requests for whole logs."""
    return {"container": container, "timestamps": "true"}


def query(options: argparse.Namespace) -> dict[str, str]:
    """Parameters of the requests for what was asked for."""
    found = everything(options.container)
    if options.tail is not None:
        found["tailLines"] = str(options.tail)
    if options.since is not None:
        found["sinceSeconds"] = str(options.since)
    if options.previous:
        found["previous"] = "true"
    return found


async def run(call: Call) -> int:
    """Show the logs."""
    options = call.options
    async with connect(call.place) as server:
        found = await server.find(options.target)
        if options.failed:
            return await _failed(call, server, found)
        there = {pod.name: pod for pod in await server.pods(found)}
        if isinstance(found, TPUJob):
            pods = choose.chosen(options).pods(found)
        else:
            pods = sorted(filter(lambda name: choose.chosen_roles(options).wants(there[name]), there))
        printer = Printer(call.terminal, pods, not options.no_prefix, options.timestamps)
        if not options.follow:
            return await _print(printer, server, found, there, query(options))
        if isinstance(found, TPUJob):
            return await follow(printer, server, found, query(options))
        streams = Streams(
            server,
            follow_inference(server, found.metadata.name),
            choose.chosen_roles(options).wants,
            query(options),
        )
        return await _stream(printer, streams)


async def _print(
    printer: Printer,
    server: Server,
    owner: TPUJob | TPUInference,
    there: Container[str],
    query: Mapping[str, str],
) -> int:
    """All logs, merged by the times at which the lines were written."""
    logs = await read(server, [pod for pod in printer.pods if pod in there], query)
    for line in merged(logs):
        printer.show(line)
    if logs and not all(map(is_missing, logs)):
        return Exit.DONE
    raise CommandError(
        "there are no logs of these hosts" if logs else "there are no pods of these hosts",
        Exit.NOT_FOUND,
        f"`kubectl tpu why {owner.metadata.name}` says what it waits for",
    )


async def read(server: Server, pods: Sequence[str], query: Mapping[str, str]) -> list[list[Line]]:
    """The logs of pods, in their order; where a pod has none, a line that says why.

    Raises:
        ApiError: the caller may not read them.
    """
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(pod: str) -> list[Line]:
        async with gate:
            return await _read(server, pod, query)

    return list(await asyncio.gather(*map(one, pods)))


async def _read(server: Server, pod: str, query: Mapping[str, str]) -> list[Line]:
    """A log; where the pod has none, a line that says why."""
    try:
        return split(pod, await server.log(pod, **query))
    except ApiError as error:
        if error.status in DENIED:
            raise
        return [missing(pod, error.message if error.answered else "its node does not answer")]


async def follow(printer: Printer, server: Server, job: TPUJob, query: Mapping[str, str]) -> int:
    """Show what hosts write until the job has ended; the exit code is 1 if it has failed.

    Raises:
        CommandError: they are too many.
    """
    wanted = set(printer.pods)
    following = follow_job(server, job.metadata.name)
    return await _stream(printer, Streams(server, following, lambda pod: pod.name in wanted, query))


async def _stream(printer: Printer, streams: Streams) -> int:
    if len(printer.pods) > MOST:
        advice = "choose some with --rank, --slice or --role"
        raise CommandError(f"{len(printer.pods)} hosts are too many to follow", Exit.USAGE, advice)
    async for line in streams.lines():
        printer.show(line)
    return Exit.BAD if streams.failed else Exit.DONE


async def _failed(call: Call, server: Server, found: TPUJob | TPUInference) -> int:
    """What the host that failed first has written last."""
    failure = found.status.last_failure
    if failure is None:
        call.terminal.lines([f"no host of {found.kind} {found.metadata.name} has failed"])
        return Exit.DONE
    lines = await _last_lines(call.options.tail or LAST, server, await server.pods(found), failure)
    at = f", {moment(failure.time)}" if failure.time else ""
    title = f"{brief(failure)} - {place(failure)}{at}"
    call.terminal.lines([call.terminal.style.paint(title, "red"), *lines])
    return Exit.DONE


async def _last_lines(tail: int, server: Server, pods: Sequence[Pod], failure: Failure) -> list[str]:
    """From the log while there is one, or else from what the launcher has reported."""
    reported = list(lastwords.of(pods, failure))
    pod = next((pod for pod in pods if pod.name == failure.pod), None)
    if pod is not None and (pod.failed or reported):
        asked = everything(failure.container or names.MAIN_CONTAINER) | {"tailLines": str(tail)}
        log = await _read(server, pod.name, asked if pod.failed else asked | {"previous": "true"})
        if log and not is_missing(log):
            return [line.text for line in log]
    return reported[-tail:] or ["(the pod of that attempt is gone, and its log with it)"]


COMMAND: Final = Command("logs", "what the hosts have written; --failed for the root cause", add, run)
