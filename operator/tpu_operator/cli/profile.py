"""`kubectl tpu profile NAME`: a trace of all processes of a job, from all hosts at once, for XProf."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from tpu_operator.cli import choose, launchers
from tpu_operator.cli.command import (
    Call,
    Command,
    CommandError,
    Exit,
    Parser,
    add_job,
    add_output,
    add_place,
    span,
)
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import flat
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpu_operator.cli.server import Server

Object = dict[str, Any]

XPROF: Final = "xprof"
PORT: Final = 8791
"""Where XProf listens unless it is told otherwise."""
PAGE: Final = "profile"
"""The launcher's page."""
SECONDS: Final = 5
LONGEST: Final = 600
"""What launchers take at most, in seconds."""
WRITING: Final = 150.0
"""Seconds for a host to write its traces, once they are taken."""
SILENCE: Final = 30.0
"""Seconds without a byte after which a trace is given up."""
PIECE: Final = 2**18


class _Trace(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(pattern=r"^[\w-]+\.xplane\.pb$")]
    """Part of the address that it is fetched from."""


class _Taken(msgspec.Struct):
    files: list[_Trace]
    errors: list[str]


class Host(msgspec.Struct, frozen=True):
    """What there is of a host.

    Attributes:
        pod: its name.
        files: its traces, one of each process.
        bytes: their size.
        errors: why there are not more.
    """

    pod: str
    files: list[str]
    bytes: int
    errors: list[str]


class Profile(msgspec.Struct, frozen=True):
    """A trace of a job.

    Attributes:
        folder: what XProf takes as its directory.
        run: the trace among those in the folder.
        seconds: how long it was taken for.
        hosts: what there is of each host.
    """

    folder: str
    run: str
    seconds: int
    hosts: list[Host]


def add(parser: Parser) -> None:
    """Add the arguments."""
    add_job(parser)
    parser.add_argument(
        "--time", type=span, default=SECONDS, metavar="TIME", help="how long: 5s (default) to 10m"
    )
    parser.add_argument("--folder", metavar="DIR", help="where to put the traces; default: profile/NAME")
    parser.add_argument(
        "--open", action="store_true", help=f"start XProf on them, port {PORT}, until you interrupt it"
    )
    choose.add(parser)
    add_output(parser)
    add_place(parser)


async def run(call: Call) -> int:
    """Take the traces, and fetch them."""
    options = call.options
    if options.time > LONGEST:
        raise CommandError(f"--time: {options.time} s are more than {LONGEST} s", Exit.USAGE)
    if options.open and not shutil.which(XPROF):
        advice = f"`pipx install {XPROF}`, or leave --open out"
        raise CommandError(f"--open starts {XPROF}, which is not on PATH", Exit.USAGE, advice)
    folder = options.folder or f"profile/{options.name}"
    async with connect(call.place) as server:
        pods = await launchers.hosts(server, options)
        # All at the same time, however many there are.
        taken = await asyncio.gather(*(_take(server, pod, options.time) for pod in pods))
        name = call.clock().strftime("%Y_%m_%d_%H_%M_%S")
        target = Path(folder, "plugins", "profile", name)
        traces = {_name(pod): one for pod, one in zip(pods, taken, strict=True)}
        hosts = await launchers.of_each(pods, lambda pod: _fetch(server, pod, traces[_name(pod)], target))
    profile = Profile(folder, name, options.time, hosts)
    call.show(profile, lambda: draw(profile))
    if options.open and any(host.files for host in hosts):
        sys.stdout.flush()
        os.execvp(XPROF, [XPROF, f"--logdir={folder}", f"--port={PORT}"])  # noqa: S606 - the user's own
    return Exit.BAD if any(host.errors for host in hosts) else Exit.DONE


async def _take(server: Server, pod: Object, seconds: int) -> _Taken:
    path = launchers.path(server, pod, PAGE)
    try:
        answer = await server.api.request("POST", path, body={"seconds": seconds}, timeout=seconds + WRITING)
        return msgspec.json.decode(answer, type=_Taken)
    except ApiError as error:
        return _Taken([], [error.message.strip() or error.reason])
    except msgspec.MsgspecError as error:
        return _Taken([], [f"this is no answer of a launcher: {error}"])


async def _fetch(server: Server, pod: Object, taken: _Taken, folder: Path) -> Host:
    name, files, errors, size = _name(pod), [], [*taken.errors], 0
    for number, trace in enumerate(taken.files):
        process = f"-{number}" if len(taken.files) > 1 else ""
        file = folder / f"{name}{process}.xplane.pb"
        try:
            size += await _download(server, launchers.path(server, pod, f"{PAGE}/{trace.name}"), file)
            files.append(file.name)
        except ApiError as error:
            errors.append(f"{trace.name}: {error.message.strip() or error.reason}")
    return Host(name, files, size, errors)


async def _download(server: Server, path: str, file: Path) -> int:
    """Write a page of a launcher to a file, piece by piece; its size."""
    file.parent.mkdir(parents=True, exist_ok=True)
    async with server.api.stream(path, {}, SILENCE) as content:
        with file.open("wb") as out:
            async for piece in content.iter_chunked(PIECE):
                out.write(piece)
            return out.tell()


def draw(profile: Profile) -> Iterator[str]:
    """The trace in a few lines, and what to type next."""
    for host in profile.hosts:
        traces = f"{len(host.files)} of its processes, {host.bytes / 1e6:.1f} MB"
        told = [*([traces] if host.files else []), *map(flat, host.errors)]
        yield f"{host.pod}  {'; '.join(told)}"
    if not any(host.files for host in profile.hosts):
        yield "there is no trace"
        return
    yield f"{profile.seconds} s are in {profile.folder}/plugins/profile/{profile.run}; to look at them:"
    yield f"  {XPROF} --logdir={profile.folder} --port={PORT}    # and http://localhost:{PORT}"


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


COMMAND: Final = Command(
    "profile",
    "a trace of what all processes of a job do, from all hosts at once, for XProf",
    add,
    run,
    details="Of processes that have started JAX or TorchTPU; they go on, and need not have been made for it.",
)
