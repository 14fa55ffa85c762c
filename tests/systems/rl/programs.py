"""The programs of examples/reinforcement-learning.yaml as processes of this machine."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.kube import wait_for
from tests.loopback import fetch, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[3]
PYTHON: Final = ROOT / ".venv-rl" / "bin" / "python"
SECONDS: Final = 900
"""For one run; machines may be busy."""
STEP: Final = re.compile(r"^step (\d+) reward (\S+)$", re.MULTILINE)
SENT: Final = re.compile(r"^weights (\w+) to (\S+): (full|delta), (\d+) bytes$", re.MULTILINE)


def example() -> list[dict[str, Any]]:
    """The objects of the example."""
    return list(yaml.safe_load_all((ROOT / "examples/reinforcement-learning.yaml").read_text()))


def rewards(log: str) -> dict[int, float]:
    """The mean reward of each step."""
    return {int(step): float(reward) for step, reward in STEP.findall(log)}


def sent(log: str) -> list[tuple[str, int]]:
    """How weights went to engines, in order: full or delta, and bytes."""
    return [(kind, int(size)) for _, _, kind, size in SENT.findall(log)]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class Program:
    """A process of one of the programs.

    Args:
        folder: with the programs.
        name: of the program.
        env: variables of its own.
    """

    def __init__(self, folder: Path, name: str, **env: str) -> None:
        self.path = folder / f"{name}.log"
        # Nothing of Hugging Face's is asked for, and nothing of a TPU is looked for.
        alone = {"HF_HUB_OFFLINE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        inherited = {name: os.environ[name] for name in ("PATH", "HOME")}
        with self.path.open("ab") as file:
            self.process = subprocess.Popen(
                [PYTHON, folder / f"{name}.py"], env=inherited | alone | env, stdout=file, stderr=file
            )

    @property
    def log(self) -> str:
        return self.path.read_text()

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Server(Program):
    """A program that answers at a port.

    Args:
        folder: with the programs.
        name: of the program.
        path: what it answers at once it is ready.
        port: where it listens.
    """

    def __init__(self, folder: Path, name: str, path: str, port: int | None = None) -> None:
        self.port = port or free_port()
        super().__init__(folder, name, PORT=str(self.port))
        self._ready = f"http://127.0.0.1:{self.port}{path}"

    def wait_ready(self) -> None:
        wait_for(f"{self._ready} answers: {self.log}", lambda: fetch(self._ready)[0] == 200, SECONDS)
