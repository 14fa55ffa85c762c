"""Real launchers on loopback, and the environment that the operator would give them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from tpu_runtime import environment
from tpu_runtime.processes import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")
RUNTIME = Path(environment.__file__).parent.parent
PATIENCE = 60.0
PYTHON = [sys.executable, "-S"]


def variables(
    changes: Mapping[str, str | None] | None = None,
    /,
    *,
    slice_index: int = 0,
    host: int = 0,
    slices: int = 1,
    hosts: int = 1,
    launcher: str = "none",
    processes: int = 1,
    attempt: int = 0,
    **more: str | None,
) -> dict[str, str]:
    """The environment of one host with four chips; changes set variables, or remove them with None."""
    env: dict[str, str | None] = {
        "TPU_OPERATOR_KIND": "TPUJob",
        "TPU_OPERATOR_NAME": "job",
        "TPU_OPERATOR_NAMESPACE": "default",
        "TPU_OPERATOR_SLICE": str(slice_index),
        "TPU_OPERATOR_HOST": str(host),
        "TPU_OPERATOR_NUM_SLICES": str(slices),
        "TPU_OPERATOR_HOSTS_PER_SLICE": str(hosts),
        "TPU_OPERATOR_CHIPS_PER_HOST": "4",
        "TPU_OPERATOR_DEVICES_PER_HOST": "4",
        "TPU_OPERATOR_PROCESSES_PER_HOST": str(processes),
        "TPU_OPERATOR_TOPOLOGY": f"{2 * hosts}x2",
        "TPU_OPERATOR_ACCELERATOR": "tpu-v5-lite-podslice",
        "TPU_OPERATOR_ATTEMPT": str(attempt),
        "TPU_OPERATOR_LAUNCHER": launcher,
        "TPU_OPERATOR_EMULATE": "cpu",
        "TPU_OPERATOR_COORDINATOR": "localhost",
        "TPU_WORKER_ID": str(host),
        "TPU_WORKER_HOSTNAMES": ",".join(["localhost"] * hosts),
        "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{8476 + i}" for i in range(hosts * processes)),
        "TPU_PROCESS_PORT": str(8476 + host * processes),
        "MEGASCALE_NUM_SLICES": str(slices) if slices > 1 else "",
        "MEGASCALE_SLICE_ID": str(slice_index) if slices > 1 else "",
        "MEGASCALE_COORDINATOR_ADDRESS": "localhost:8080" if slices > 1 else "",
    }
    if launcher == "ray":
        env |= {
            "TPU_ACCELERATOR_TYPE": f"v5litepod-{4 * hosts}",
            "TPU_TOPOLOGY": f"{2 * hosts}x2",
            "TPU_NAME": f"job-{slice_index}",
        }
    if launcher in {"torchrun", "ray"}:
        env |= {
            "NNODES": str(slices * hosts),
            "NODE_RANK": str(slice_index * hosts + host),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
            "TORCH_TPU_TOPOLOGY": f"{2 * hosts},2,1",
            "TORCH_TPU_DEVICES_PER_HOST": "4",
            "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(f"localhost:{8700 + i}" for i in range(hosts * 4)),
            "TORCH_TPU_XPROF_SESSION_ID": "7",
        }
    return {key: value for key, value in (env | dict(changes or {}) | more).items() if value is not None}


def until(condition: Callable[[], T], what: str = "condition", seconds: float = PATIENCE) -> T:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain for: {what}"
        time.sleep(0.01)
    return result


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that nobody else gets meanwhile: bound, not listening, and shared with who listens on it."""
    with socket.socket(socket.AF_INET6) as holder:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("::", 0))
        yield holder.getsockname()[1]


class Launcher:
    """A `tpu-launch` that runs."""

    def __init__(
        self, folder: Path, env: dict[str, str], command: Sequence[str], prefix: Sequence[str]
    ) -> None:
        folder.mkdir()
        self._folder = folder
        extra = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(RUNTIME),
            "TPU_LAUNCH_TERMINATION_LOG": str(folder / "message"),
        }
        with self._path("stdout").open("wb") as out, self._path("stderr").open("wb") as err:
            self.process = subprocess.Popen(
                [*(prefix or [*PYTHON, "-m", "tpu_runtime"]), "--", *command],
                env=extra | {"TPU_LAUNCH_PORT": "0"} | env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def _path(self, name: str) -> Path:
        return self._folder / name

    @property
    def stdout(self) -> bytes:
        return self._path("stdout").read_bytes()

    @property
    def stderr(self) -> str:
        return self._path("stderr").read_text(errors="replace")

    @property
    def message(self) -> dict[str, Any] | None:
        """The termination message; None if there is none."""
        path = self._path("message")
        return json.loads(path.read_bytes()) if path.exists() and path.stat().st_size else None

    def code(self) -> int:
        """Wait for the end."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher does not end; its stderr:\n{self.stderr}") from None

    def wait_for(self, text: str, seconds: float = PATIENCE) -> None:
        """Wait until something is on stdout or stderr."""

        def there() -> bool:
            return text in self.stderr or text.encode() in self.stdout

        until(there, f"{text!r} in:\n{self.stderr}", seconds)

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def kill(self) -> None:
        """End it with all that descends from it, as its container would end."""
        rest = descendants(self.process.pid) if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        for pid in rest:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def get(port: int, path: str) -> tuple[int, str]:
    """Ask a launcher's HTTP port; status 0 if nobody listens."""
    return _ask(Request(f"http://127.0.0.1:{port}{path}"))


def post(port: int, path: str, body: object) -> tuple[int, str]:
    """Send a launcher's HTTP port a JSON document; status 0 if nobody listens."""
    return _ask(Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), method="POST"))


def _ask(request: Request) -> tuple[int, str]:
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""
