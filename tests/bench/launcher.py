"""What the launcher costs: `python -m tests.bench.launcher`.

Four hosts on loopback start the same processes, once by `tpu-launch`, as the one file that is in images, and
once without it: by the very command that it would start. Both take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from tests.bench.report import insert, table
from tests.bench.usage import cpu_seconds, rss_mib
from tests.loopback import free_port
from tests.unit.runtime.harness import variables
from tpu_runtime import bundle
from tpu_runtime.environment import read_environment
from tpu_runtime.frameworks.torchtpu import agent_command
from tpu_runtime.gate import ARRIVED, RESOLVED, Gate, Member, answer_request
from tpu_runtime.http import Server
from tpu_runtime.limits import allow_files
from tpu_runtime.processes import descendants
from tpu_runtime.visitor import RemoteDoor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpu_runtime import http

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "benchmarks" / "launcher.md"
PYTHON: Final = ROOT / ".venv-torchtpu" / "bin" / "python"
HOSTS: Final = 4
PROCESSES: Final = 4
PATIENCE: Final = 300.0
PROGRAM: Final = """
import os, sys, time
print("first line", time.time(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""
LAUNCHERS: Final = ("none", "torchrun")
LINE: Final = re.compile(r"first line (\S+)$", re.MULTILINE)
LATE: Final = "none, host 0 last: more seconds"
LATE_SECONDS: Final = 6.0
"""Long enough for the other hosts to have become slow to ask for it, and their processes to have started."""
LIMITS: Final = {"torchrun: more seconds": 1.0, LATE: 1.0, "memory of a launcher": 40.0}
UNITS: Final = {"memory of a launcher": "MiB"}


@dataclass(frozen=True)
class Start:
    """How four hosts started.

    Attributes:
        seconds: from the start of host 0 to the first line of the last process of the user's.
        rss: MiB of the largest of the processes that were started first.
        cpu: seconds on the CPU of all of those.
    """

    seconds: float
    rss: float
    cpu: float


def measure(
    commands: Sequence[Sequence[str]], envs: Sequence[dict[str, str]], folder: Path, late: float
) -> Start:
    """Start a command for each host, host 0 so many seconds after the others, and wait for all processes."""
    files = [folder / f"host-{host}" for host in range(HOSTS)]
    with ExitStack() as running:
        hosts = [*zip(commands, envs, files, strict=True)]
        before, rest = (hosts[1:], hosts[:1]) if late else ([], hosts)
        pids = [running.enter_context(_started(*each)) for each in before]
        time.sleep(late)
        began = time.time()
        pids += [running.enter_context(_started(*each)) for each in rest]
        lines = _lines(files)
        seconds = max(lines) - began
        start = Start(seconds, max(map(rss_mib, pids)), sum(map(cpu_seconds, pids)))
        (folder / "done").touch()
    return start


@contextmanager
def _started(command: Sequence[str], env: dict[str, str], file: Path) -> Iterator[int]:
    """A process, which ends by itself in time, or with all that it has started."""
    with file.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process.pid
        process.wait(PATIENCE)
    finally:
        for pid in descendants(process.pid) if process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def _lines(files: Sequence[Path]) -> list[float]:
    """When the processes of all hosts have written their first lines, in epoch seconds."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = [LINE.findall(file.read_text()) for file in files]
        if all(len(each) == PROCESSES for each in found):
            return [float(moment) for each in found for moment in each]
        time.sleep(0.05)
    said = "\n".join(file.read_text()[-2000:] for file in files)
    raise RuntimeError(f"not all processes have started within {PATIENCE:.0f} s:\n{said}")


def environment(host: int, launcher: str, gate: int, master: int) -> dict[str, str]:
    """The variables of a host, as the operator would set them, but for loopback."""
    ours = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "TPU_OPERATOR_COORDINATOR": f"localhost:{gate}",
        "TPU_LAUNCH_PORT": str(gate) if host == 0 else "0",
        "TPU_LAUNCH_TERMINATION_LOG": os.devnull,
        "TPU_OPERATOR_EMULATE": "",
        "TPU_SKIP_MDS_QUERY": "true",
        "MASTER_PORT": str(master),
    }
    return variables(ours, hosts=HOSTS, host=host, launcher=launcher, processes=PROCESSES)


def start(launcher: str, python: Path, *, plain: bool, late: float = 0.0) -> Start:
    """Measure one start.

    Args:
        launcher: torchrun, or none for processes that start at once.
        python: an interpreter with torch.
        plain: without `tpu-launch`.
        late: seconds for which the other hosts have to wait for host 0.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = [str(python), "-c", PROGRAM, str(folder / "done")]
        ports = free_port(), free_port()
        envs = [environment(host, launcher, *ports) for host in range(HOSTS)]
        if plain:
            commands = [_plain(env, launcher, program) for env in envs]
        else:
            file = folder / "tpu-launch"
            file.write_bytes(bundle.bundle())
            commands = [[str(python), str(file), "--", *program]] * HOSTS
        return measure(commands, envs, folder, late)


def _plain(env: dict[str, str], launcher: str, program: Sequence[str]) -> list[str]:
    """What a host starts without the launcher."""
    if launcher == "torchrun":
        return agent_command(read_environment(env), program)
    return ["sh", "-c", 'for i in $(seq "$0"); do "$@" & done; wait', str(PROCESSES), *program]


async def gate_of(slices: int, hosts: int) -> float:
    """Seconds on the CPU until all hosts of as many slices are through the gate, both ends of it included."""
    gate = Gate("TPUJob/default/job", 0, range(slices), hosts)

    async def handle(request: http.Request) -> http.Response:
        return await answer_request(gate, request.path, request.body)

    async def visit(address: tuple[str, int], index: int, host: int) -> None:
        member = Member("TPUJob/default/job", 0, index, host, host, 7, f"{index}-{host}")
        for stage in (ARRIVED, RESOLVED):
            await RemoteDoor(address, member).join(stage, 20)

    allow_files(4 * slices * hosts)
    server = Server(handle)
    await server.start(0)
    began = time.process_time()
    places = ((index, host) for index in range(slices) for host in range(hosts))
    await asyncio.gather(*(visit(("127.0.0.1", server.port), *place) for place in places))
    await gate.all_answered(PATIENCE)
    await server.close()
    return time.process_time() - began


def run(
    launchers: Sequence[str], runs: int, python: Path, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """All figures, each of as many runs."""
    found: dict[str, list[float]] = {}

    def note(metric: str, value: float) -> None:
        found.setdefault(metric, []).append(round(value, 3))
        say(f"{metric}: {value:.2f} {UNITS.get(metric, 's')}")

    for launcher in [*launchers] * runs:
        without = start(launcher, python, plain=True)
        with_it = start(launcher, python, plain=False)
        note(f"{launcher}: plain", without.seconds)
        note(f"{launcher}: tpu-launch", with_it.seconds)
        note(f"{launcher}: more seconds", with_it.seconds - without.seconds)
        note("memory of a launcher", with_it.rss)
        note("CPU of four launchers", with_it.cpu)
    for _ in range(runs if "none" in launchers else 0):
        without, with_it = (start("none", python, plain=plain, late=LATE_SECONDS) for plain in (True, False))
        note(LATE, with_it.seconds - without.seconds)
    for _ in range(runs):
        note("gate of 1,024 hosts, CPU", asyncio.run(gate_of(16, 64)))
    return found


def markdown(found: dict[str, list[float]]) -> str:
    """The figures for people."""
    rows = [("", "median", "least", "most", "limit", "")]
    for metric, values in found.items():
        unit, limit = UNITS.get(metric, "s"), LIMITS.get(metric)
        kept = "" if limit is None else "kept" if median(values) <= limit else "**over**"
        middle, least, most = (f"{each:.3g} {unit}" for each in (median(values), min(values), max(values)))
        rows.append((metric, middle, least, most, "" if limit is None else f"{limit:g} {unit}", kept))
    return table(rows) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the figures down."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.launcher", description=__doc__)
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=LAUNCHERS, help="which")
    parser.add_argument("--runs", type=int, default=7, help="of each (default: %(default)s)")
    parser.add_argument("--python", type=Path, default=PYTHON, help="an interpreter with torch")
    parser.add_argument(
        "--output", type=Path, default=PAGE, help="the page to write to; its name with .json too"
    )
    options = parser.parse_args(arguments)
    output: Path = options.output
    file = output.with_suffix(".json")
    found: dict[str, list[float]] = json.loads(file.read_text()) if file.exists() else {}
    found |= run(options.launchers, options.runs, options.python, lambda text: print(text, file=sys.stderr))  # noqa: T201
    file.write_text(json.dumps(found, indent=1) + "\n")
    output.write_text(insert(output.read_text(), markdown(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
