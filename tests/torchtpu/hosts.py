"""Jobs of several hosts on loopback, started by real launchers with the real torch_tpu."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tests.loopback import free_port
from tests.unit.runtime.harness import RUNTIME, Launcher, variables

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-torchtpu" / "bin" / "python"
SCRIPTS = Path(__file__).parent / "scripts"
SECONDS = 900
"""A start takes ten seconds of CPU time, and machines may be busy."""
ROUNDING = 1e-4
"""Of losses of several processes, which differ from those of one by how sums are ordered."""
STEP = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)


def example(name: str = "torchtpu-train") -> str:
    """The program of one of the examples."""
    job = yaml.safe_load((ROOT / f"examples/{name}.yaml").read_text())
    return str(job["spec"]["run"]["command"][2])


def python(*arguments: str | Path, **env: str) -> str:
    """What a process alone prints."""
    done = subprocess.run(
        [PYTHON, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def one_process(name: str, folder: Path, steps: int) -> dict[int, str]:
    """Losses of an example in one process on the CPU, without TorchTPU."""
    single = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    ours = {"DEVICE": "cpu", "CHECKPOINTS": str(folder), "STEPS": str(steps), "PYTHONPATH": str(RUNTIME)}
    return losses(python("-c", example(name), TORCH_DEVICE_BACKEND_AUTOLOAD="0", **ours, **single).encode())


def same_losses(found: dict[int, str], expected: dict[int, str]) -> None:
    """Assert that two runs differ by no more than the order in which sums are taken."""
    assert found.keys() == expected.keys()
    for step, loss in expected.items():
        assert abs(float(found[step]) / float(loss) - 1) < ROUNDING, (step, found, expected)


def losses(output: bytes) -> dict[int, str]:
    """The loss after each step, as it was printed."""
    return {int(step): loss for step, loss in STEP.findall(output.decode())}


def resumed_alike(found: dict[int, str], whole: dict[int, str], saved: int) -> None:
    """Assert that losses after a checkpoint are those of a run without a break.

    The first one is the very same, as it comes of what was saved alone. Then DDP sums gradients in other
    buckets than a run that has been through its first step, which rounds in other ways.
    """
    assert found.keys() == {step for step in whole if step > saved}
    assert found[saved + 1] == whole[saved + 1]
    for step, loss in found.items():
        assert abs(float(loss) - float(whole[step])) < ROUNDING, (step, found, whole)


class Job:
    """Hosts with processes of one program.

    Args:
        folder: for what the launchers write.
        command: the program.
        hosts: how many of them.
        processes: on each.
        python: the interpreter, with its packages.
        env: variables of theirs.

    Attributes:
        port: where the launcher of host 0 answers.
    """

    def __init__(
        self,
        folder: Path,
        *command: str | Path,
        hosts: int = 2,
        processes: int = 2,
        python: Path = PYTHON,
        **env: str,
    ) -> None:
        gate, master = free_port(), free_port()
        self.port = gate
        shared = {
            "HOME": os.environ["HOME"],
            "MASTER_PORT": str(master),
            "TPU_OPERATOR_COORDINATOR": f"localhost:{gate}",
            "TPU_LAUNCH_GRACE_SECONDS": "10",
        }
        folder.mkdir()
        self.hosts = [
            Launcher(
                folder / str(host),
                variables(
                    shared | env,
                    hosts=hosts,
                    host=host,
                    launcher="torchrun",
                    processes=processes,
                    TPU_LAUNCH_PORT=str(gate) if host == 0 else "0",
                ),
                [str(python), *map(str, command)],
                (),
            )
            for host in range(hosts)
        ]

    def wait(self) -> list[int]:
        """Exit codes of the hosts, once all have ended."""
        return [host.process.wait(SECONDS) for host in self.hosts]

    def kill(self) -> None:
        for host in self.hosts:
            host.kill()

    @property
    def said(self) -> str:
        """What all hosts wrote, for failures."""
        return "\n".join(self._said())

    def _said(self) -> Iterator[str]:
        for index, host in enumerate(self.hosts):
            yield f"--- host {index}\n{host.stdout.decode(errors='replace')[-4000:]}\n{host.stderr[-6000:]}"
