"""What is started for each launcher, and with which environment."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.runtime.harness import RUNTIME, variables
from tpu_runtime import frameworks
from tpu_runtime.environment import read_environment
from tpu_runtime.frameworks.torchtpu import WorkerFailure, lost_peer, recorded, worker_failure
from tpu_runtime.output import Line

if TYPE_CHECKING:
    from pathlib import Path

    from tpu_runtime.processes import Command


def started(*command: str, **options: Any) -> list[Command]:
    return frameworks.commands(read_environment(variables(**options)), command or ("python", "train.py"))


def added(**options: Any) -> list[dict[str, str]]:
    """For each process, the variables in which it differs from its container."""
    container = variables(**options)
    return [dict(command.variables.items() - container.items()) for command in started(**options)]


EMULATION = {
    "JAX_PLATFORMS": "cpu",
    "JAX_FORCE_TPU_INIT": "1",
    "JAX_NUM_CPU_DEVICES": "4",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    "TPU_OPERATOR_LOCAL_RANK": "0",
}


def test_none_starts_copies_that_can_tell_themselves_apart() -> None:
    assert [command.argv for command in started(processes=2)] == [("python", "train.py")] * 2
    ranks = [{"TPU_OPERATOR_LOCAL_RANK": "0"}, {"TPU_OPERATOR_LOCAL_RANK": "1"}]
    assert added(processes=2, TPU_OPERATOR_EMULATE="") == ranks


@pytest.mark.parametrize("launcher", ["none", "torchrun"])
def test_in_emulation_torch_finds_ours_on_the_path(launcher: str) -> None:
    [process] = added(launcher=launcher)
    assert process["PYTHONPATH"] == str(RUNTIME)
    [process] = added(launcher=launcher, PYTHONPATH="/app:/lib", OMP_NUM_THREADS="2")
    assert process["PYTHONPATH"] == f"{RUNTIME}:/app:/lib"
    assert "OMP_NUM_THREADS" not in process
    assert process["TF_CPP_MIN_LOG_LEVEL"] == "3"


def test_on_tpu_nothing_of_the_emulation_is_there() -> None:
    for launcher in ("none", "torchrun", "jax"):
        [command, *_] = started(launcher=launcher, processes=4, TPU_OPERATOR_EMULATE="")
        assert not {"PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL", "TPU_LIBRARY_PATH"} & command.variables.keys()
        assert "tpu_runtime.emulate" not in command.argv


def test_jax_in_emulation_gets_what_its_detection_reads() -> None:
    assert added(launcher="jax", hosts=4, host=2) == [EMULATION]


def test_jax_on_tpu_needs_nothing_more() -> None:
    assert added(launcher="jax", hosts=4, host=2, TPU_OPERATOR_EMULATE="") == [
        {"TPU_OPERATOR_LOCAL_RANK": "0"}
    ]


def test_jax_on_one_slice_never_asks_a_metadata_server() -> None:
    names = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")
    [process] = added(launcher="jax", TPU_OPERATOR_EMULATE="", **dict.fromkeys(names))
    assert process == dict.fromkeys(names, "") | {"TPU_OPERATOR_LOCAL_RANK": "0"}


def test_jax_keeps_every_value_that_the_user_has_set() -> None:
    users = {
        "JAX_PLATFORMS": "cpu,tpu",
        "JAX_NUM_CPU_DEVICES": "",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi",
    }
    assert added(launcher="jax", **users) == [{"JAX_FORCE_TPU_INIT": "1", "TPU_OPERATOR_LOCAL_RANK": "0"}]


def test_jax_processes_of_one_host_in_emulation() -> None:
    first, second = added(launcher="jax", hosts=2, host=1, processes=2)
    assert first == EMULATION | {"JAX_NUM_CPU_DEVICES": "2", "TPU_WORKER_ID": "2"}
    assert second == first | {
        "TPU_WORKER_ID": "3",
        "TPU_PROCESS_PORT": "8479",
        "TPU_OPERATOR_LOCAL_RANK": "1",
    }


def test_jax_process_ids_stay_within_the_slice() -> None:
    """JAX itself adds MEGASCALE_SLICE_ID times the processes of a slice."""
    [process] = added(launcher="jax", slices=2, slice_index=1, hosts=2, host=1)
    assert process == EMULATION
    [command] = started(launcher="jax", slices=2, slice_index=1, hosts=2, host=1)
    assert command.variables["TPU_WORKER_ID"] == "1"
    assert command.variables["MEGASCALE_SLICE_ID"] == "1"


def test_jax_addresses_are_made_where_the_user_has_set_the_identity() -> None:
    _, second = added(
        launcher="jax",
        hosts=2,
        processes=2,
        TPU_WORKER_HOSTNAMES="b,a",
        TPU_WORKER_ID="1",
        TPU_PROCESS_ADDRESSES=None,
    )
    assert second["TPU_PROCESS_ADDRESSES"] == "b:8476,b:8477,a:8476,a:8477"
    assert (second["TPU_WORKER_ID"], second["TPU_PROCESS_PORT"]) == ("3", "8477")


def test_jax_one_process_per_chip_on_tpu() -> None:
    processes = added(launcher="jax", hosts=2, host=1, processes=4, TPU_OPERATOR_EMULATE="")
    assert processes[2] == {
        "TPU_WORKER_ID": "6",
        "TPU_PROCESS_PORT": "8482",
        "CLOUD_TPU_TASK_ID": "6",
        "TPU_VISIBLE_CHIPS": "2",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "4,2,1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_OPERATOR_LOCAL_RANK": "2",
    }


@pytest.mark.parametrize(
    ("emulated", "agent"), [("", "torch.distributed.run"), ("cpu", "tpu_runtime.emulate")]
)
def test_torchrun_is_pinned(emulated: str, agent: str) -> None:
    [command] = started(
        launcher="torchrun",
        slices=2,
        slice_index=1,
        hosts=2,
        host=1,
        processes=4,
        TPU_OPERATOR_EMULATE=emulated,
    )
    assert command.argv == [
        "python", "-m", agent, "--nnodes=4", "--node_rank=3", "--master_addr=localhost",
        "--master_port=29500", "--nproc_per_node=4", "--max_restarts=0", "--no_python", "python", "train.py",
    ]  # fmt: skip
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & command.variables.keys()


@pytest.mark.parametrize(
    ("command", "interpreter"),
    [
        (("/opt/venv/bin/python3.12", "-u", "train.py"), "/opt/venv/bin/python3.12"),
        (("python3", "train.py"), "python3"),
        (("./train.sh",), None),
        (("pythonic",), None),
    ],
)
def test_torchruns_agent_runs_where_torch_is(command: tuple[str, ...], interpreter: str | None) -> None:
    [found] = started(*command, launcher="torchrun")
    assert found.argv[0] == interpreter or (interpreter is None and "python" in found.argv[0])
    assert tuple(found.argv[-len(command) :]) == command


def test_without_a_python_on_the_path_ours_runs_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    [found] = started("./train.sh", launcher="torchrun")
    assert found.argv[0] == sys.executable


API = "torch/distributed/elastic/multiprocessing/api.py"
AGENT = f"""\
step 41
[rank6]: Traceback (most recent call last):
[rank6]:   File "train.py", line 9, in <module>
[rank6]: ValueError: loss is nan
[rank7]: Traceback (most recent call last):
[rank7]:   File "train.py", line 7, in <module>
[rank7]: RuntimeError: Connection closed by peer
W1130 07:12:33.100000 1 {API}:1010] Sending process 12 closing signal SIGTERM
E1130 07:12:33.200000 1 {API}:984] failed (exitcode: 42) local_rank: 2 (pid: 13) of binary: python
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-30_07:12:34
  rank      : 7 (local_rank: 3)
  exitcode  : -15 (pid: 14)  (SIGTERM)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_07:12:33
  host      : job-0-1
  rank      : 6 (local_rank: 2)
  exitcode  : 42 (pid: 13)
  error_file: <N/A>
  traceback : To enable traceback see: the manual
============================================================"""


def lines(text: str) -> list[Line]:
    return [Line(float(i), line) for i, line in enumerate(text.splitlines())]


def said(failure: WorkerFailure | None) -> list[str]:
    assert failure is not None
    return [line.text for line in failure.said]


def test_the_agents_report_tells_which_process_failed_and_how() -> None:
    found = worker_failure(lines(AGENT))
    assert found is not None
    assert (found.local_rank, found.exit_code, found.noticed) == (2, 42, 7.0)
    assert found.before[-1].text == "[rank7]: RuntimeError: Connection closed by peer"
    assert said(found)[-1] == "ValueError: loss is nan"


def test_a_process_that_was_killed_is_the_cause_though_another_is_named() -> None:
    lost = "RuntimeError: [/torch/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    named = AGENT.replace("ValueError: loss is nan", lost)
    found = worker_failure(lines(named.replace(": -15 ", ": -9 ").replace("SIGTERM)", "SIGKILL)")))
    assert found is not None
    assert (found.local_rank, found.exit_code) == (3, -9)
    found = worker_failure(lines(named))  # the other one was ended by the agent
    assert found is not None
    assert (found.local_rank, found.exit_code, found.is_echo) == (2, 42, True)


def test_a_process_that_went_without_an_exception_is_not_given_anothers() -> None:
    silent = "\n".join(line for line in AGENT.splitlines() if not line.startswith("[rank6]"))
    assert said(worker_failure(lines(silent))) == ["step 41"]


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (
            "RuntimeError: [/torch/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer",
            1,
        ),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", 1),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", 0),
        ("ValueError: loss is nan", 0),
    ],
)
def test_what_comes_of_a_lost_peer_is_known(error: str, lost: int) -> None:
    assert lost_peer(error) == bool(lost)


def test_what_torch_has_recorded_of_a_failure_is_found(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    assert worker_failure(lines(AGENT)).error_file == ""  # type: ignore[union-attr]
    found = worker_failure(lines(AGENT.replace("<N/A>", str(path))))
    assert found is not None
    assert found.error_file == str(path)
    assert recorded(found.error_file) is None
    path.write_text('{"message": {"message": "ValueError: loss is nan", "extraInfo": {"timestamp": "1"}}}')
    os.utime(path, (0, 1234.5))
    assert recorded(found.error_file) == Line(1234.5, "ValueError: loss is nan")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"message": {}}', "null"])
def test_a_record_that_cannot_be_read_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(text)
    assert recorded(str(path)) is None


@pytest.mark.parametrize("text", ["", "no report", "Root Cause (first observed failure):\n[0]:\n  what"])
def test_without_a_report_the_agents_own_exit_code_stands(text: str) -> None:
    assert worker_failure(lines(text)) is None
