"""Launcher ray: what is started where, and how a cluster ends. Real Ray is in tests/e2e."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.runtime.harness import RUNTIME, variables
from tpu_runtime.environment import BadEnvironmentError, read_environment
from tpu_runtime.frameworks import ray
from tpu_runtime.frameworks.ray import Cluster
from tpu_runtime.frameworks.rayranks import by_rank, own_seat, seat, use
from tpu_runtime.gate import OVER, Answer, Failed
from tpu_runtime.output import Line
from tpu_runtime.report import echo, exception

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.runtime.conftest import Launch
    from tests.unit.runtime.harness import Launcher
    from tpu_runtime.environment import HostEnvironment
    from tpu_runtime.processes import Command

GIB = 1024**3
CLUSTER = Cluster(own="10.0.0.2", head="10.0.0.1", memory=100 * GIB, shm=200 * GIB)
NO_TPU = ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT", "TPU_NAME")
NO_PLACE = ("TPU_OPERATOR_SLICE", "TPU_OPERATOR_HOST", "TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY")


def host(**options: Any) -> HostEnvironment:
    return read_environment(variables({"TPU_OPERATOR_EMULATE": ""}, launcher="ray", **options))


def head(**options: Any) -> dict[str, str]:
    """The environment of the pod of `spec.head`."""
    env = variables(launcher="ray", **options) | {
        "TPU_OPERATOR_COMPONENT": "head",
        "TPU_OPERATOR_HEAD": "localhost",
    }
    torch = [name for name in env if name.startswith(("TORCH_", "MASTER_", "N", "MEGASCALE_"))]
    return {name: value for name, value in env.items() if name not in {*NO_TPU, *NO_PLACE, *torch}}


def commands(env: HostEnvironment) -> list[Command]:
    return ray.commands(env, ["python", "train.py"], CLUSTER)


class TestCommands:
    def test_a_worker_joins_with_its_chips(self) -> None:
        [node] = commands(host(hosts=4, host=2))
        assert node.argv == [
            "python", "-m", "ray.scripts.scripts", "start", "--block", "--log-style=pretty",
            "--log-color=false", "--address=10.0.0.1:6379",
            "--node-ip-address=10.0.0.2", "--node-name=job-0-2", '--resources={"TPU": 4.0}',
            f"--object-store-memory={30 * GIB}", "--metrics-export-port=8266",
            "--dashboard-agent-listen-port=8267",
        ]  # fmt: skip
        assert (node.service, node.started, node.tries) == ("ray", "Ray runtime started", 10)
        assert node.variables["RAY_USAGE_STATS_ENABLED"] == "0"
        assert node.variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0"
        assert "RAY_ADDRESS" not in node.variables

    def test_the_first_host_is_the_head_and_has_the_driver(self) -> None:
        node, driver = commands(host(hosts=4, slices=2))
        where = ["--head", "--port=6379", "--dashboard-host=0.0.0.0", "--dashboard-port=8265"]
        assert node.argv[7:11] == where
        assert '--resources={"TPU": 4.0, "TPU-v5litepod-16-head": 1.0}' in node.argv
        assert driver.argv[:2] == ["python", "-c"]
        assert driver.argv[3:] == ["10.0.0.1:6379", "32", "600.0", "python", "train.py"]
        assert driver.variables["RAY_ADDRESS"] == "10.0.0.1:6379"
        assert not driver.service

    def test_each_slice_has_a_host_at_which_it_is_asked_for(self) -> None:
        [node] = commands(host(hosts=4, slices=2, slice_index=1))
        assert '--resources={"TPU": 4.0, "TPU-v5litepod-16-head": 1.0}' in node.argv
        assert "--node-name=job-1-0" in node.argv

    def test_a_head_without_chips_leads_in_the_place_of_the_first_host(self) -> None:
        node, driver = commands(read_environment(head(hosts=4)))
        assert "--resources={}" in node.argv
        assert "--node-name=job-head" in node.argv
        assert driver.argv[4] == "16"
        assert not [name for name in node.variables if name.startswith(("JAX_", "TORCH_"))]
        [node] = commands(host(hosts=4, TPU_OPERATOR_HEAD="job-head.job"))
        assert "--address=10.0.0.1:6379" in node.argv

    def test_in_emulation_tasks_can_be_ranks_and_the_driver_is_none(self) -> None:
        env = read_environment(variables(launcher="ray", hosts=2, PYTHONPATH="/app"))
        node, driver = commands(env)
        assert node.variables["TPU_OPERATOR_EMULATE_WORKER"] == "1"
        assert "TPU_OPERATOR_EMULATE_WORKER" not in driver.variables
        assert [each.variables["PYTHONPATH"].split(os.pathsep)[1:] for each in (node, driver)] == [
            ["/app"]
        ] * 2
        assert node.variables["JAX_PLATFORMS"] == "cpu"

    def test_rays_name_of_a_slice_is_the_one_to_ask_for(self) -> None:
        [node] = commands(host(hosts=2, slices=2, slice_index=1, TPU_ACCELERATOR_TYPE="tpu7x-16"))
        assert '--resources={"TPU": 4.0, "TPU-v7x-16-head": 1.0}' in node.argv

    def test_where_devices_are_counted_the_driver_waits_for_those(self) -> None:
        devices = {"TPU_OPERATOR_DEVICES_PER_HOST": "8", "TORCH_TPU_DEVICES_PER_HOST": "8"}
        addresses = ",".join(f"localhost:{8700 + i}" for i in range(16))
        torch = {"TORCH_TPU_SLICEBUILDER_ADDRESSES": addresses, "TORCH_TPU_TOPOLOGY": "4,2,1,2"}
        node, driver = commands(host(hosts=2, RAY_TPU_RESOURCE_PER_CHIP="2", **devices, **torch))
        assert '--resources={"TPU": 8.0, "TPU-v5litepod-8-head": 1.0}' in node.argv
        assert driver.argv[4] == "16"

    def test_megascale_is_where_torchtpu_has_it(self) -> None:
        for env in (host(hosts=2, slices=2), read_environment(head(hosts=2, slices=2))):
            assert all(each.variables["MEGASCALE_PORT"] == "8080" for each in commands(env))
        assert "MEGASCALE_PORT" not in commands(host(hosts=2))[0].variables

    def test_values_of_the_user_stand(self) -> None:
        node, driver = commands(host(hosts=1, RAY_ADDRESS="elsewhere:1", RAY_USAGE_STATS_ENABLED="1"))
        assert driver.variables["RAY_ADDRESS"] == "elsewhere:1"
        assert node.variables["RAY_USAGE_STATS_ENABLED"] == "1"

    @pytest.mark.parametrize(
        ("memory", "shm", "share", "expected"),
        [
            (100, 200, "", 30.0),
            (100, 20, "", 18.0),
            (100, 200, "0.5", 50.0),
            (100, 0.0625, "many", 80 / 1024),
        ],
    )
    def test_the_object_store_fits(self, memory: float, shm: float, share: str, expected: float) -> None:
        cluster = Cluster("a", "b", int(memory * GIB), int(shm * GIB))
        found = ray.object_store({"RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": share}, cluster)
        assert found == pytest.approx(expected * GIB, abs=2)

    def test_addresses_of_both_families(self) -> None:
        assert Cluster("::2", "::1", 1, 1).address == "[::1]:6379"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"TPU_ACCELERATOR_TYPE": None}, "TPU_ACCELERATOR_TYPE is not set"),
        ({"TPU_TOPOLOGY": "8x8"}, "TPU_TOPOLOGY='8x8'"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE='4'"),
        ({"TPU_LAUNCH_PORT": "8265"}, "TPU_LAUNCH_PORT='8265'"),
        ({"RAY_TPU_RESOURCE_PER_CHIP": "2"}, "RAY_TPU_RESOURCE_PER_CHIP='2'"),
        ({"TPU_OPERATOR_RESTART_SCOPE": "Slice"}, "TPU_OPERATOR_RESTART_SCOPE='Slice'"),
    ],
)
def test_what_ray_would_stumble_over_is_told(changes: dict[str, str | None], problem: str) -> None:
    with pytest.raises(BadEnvironmentError, match="1 problem") as caught:
        read_environment(variables(changes, launcher="ray", hosts=2, slices=2))
    assert problem in str(caught.value)


class TestRanks:
    """Ray Train's numbers of workers, and TorchTPU's addresses."""

    def worker(self, slice_name: str, host: int) -> dict[str, str]:
        addresses = ",".join(f"{slice_name}-{i // 2}:{8070 + i % 2}" for i in range(4))
        return {
            "TPU_NAME": slice_name,
            "TPU_WORKER_ID": str(host),
            "TORCH_TPU_DEVICES_PER_HOST": "2",
            "TORCH_TPU_SLICEBUILDER_ADDRESSES": addresses,
        }

    def test_each_rank_has_an_address_of_the_host_that_it_is_on(self) -> None:
        places = [("a", 1), ("a", 0), ("a", 1), ("a", 0), ("b", 0), ("b", 1), ("b", 1), ("b", 0)]
        seats = [found for found in (seat(self.worker(*place)) for place in places) if found]
        assert by_rank(seats) == {
            "a": ["a-1:8070", "a-0:8070", "a-1:8071", "a-0:8071"],
            "b": ["b-0:8070", "b-1:8070", "b-1:8071", "b-0:8071"],
        }

    def test_a_worker_for_all_devices_has_the_first_address_of_its_host(self) -> None:
        seats = [found for found in (seat(self.worker("a", host)) for host in (1, 0)) if found]
        assert by_rank(seats) == {"a": ["a-1:8070", "a-0:8070"]}

    def test_hosts_without_torchtpus_variables_have_no_seats(self) -> None:
        assert seat({"TPU_NAME": "a", "TPU_WORKER_ID": "0"}) is None

    def test_a_worker_takes_the_addresses_of_its_slice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in self.worker("b", 0).items():
            monkeypatch.setenv(name, value)
        assert own_seat() == seat(self.worker("b", 0))
        use({"a": ["a-0:8070"], "b": ["b-1:8070", "b-0:8070"]})
        assert os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"] == "b-1:8070,b-0:8070"


def lines(text: str) -> list[Line]:
    return [Line(float(number), line) for number, line in enumerate(text.splitlines())]


TASK_ERROR = """\
Traceback (most recent call last):
  File "train.py", line 8, in <module>
    ray.get(step.remote())
  File "/opt/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 2900, in get
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(ValueError): ray::step() (pid=3431, ip=10.0.0.5)
  File "train.py", line 5, in step
    raise ValueError("the loss is not a number")
ValueError: the loss is not a number"""


PORT_IN_USE = (
    "[2026-12-01 05:11:57,238 C 86 86] (gcs_server) grpc_server.cc:134:  "
    "An unexpected system state has occurred. You have likely discovered a bug in Ray. Please report this "
    "issue at https://github.com/ray-project/ray/issues and we'll work with you to fix it. "
    "Check failed: server_ Failed to start the grpc server. The specified port is 6379.\n\n"
    ".Please check /tmp/ray/session_2026/logs/gcs_server.out for details. Last connection error: None"
)


def test_the_hook_of_nodes_is_where_ray_is_told_to_look_for_it() -> None:
    [node] = commands(host(hosts=2, host=1))
    module, _, name = node.variables["RAY_START_HOOK"].rpartition(".")
    params = SimpleNamespace(ray_client_server_port=10001)
    getattr(importlib.import_module(module), name)(params, head=True)
    assert params.ray_client_server_port is None


class TestRootCause:
    def test_the_exception_of_a_task_and_where_it_ran(self) -> None:
        found = exception(lines(TASK_ERROR))
        assert found is not None
        assert found.text == "ValueError: the loss is not a number (ray::step() (pid=3431, ip=10.0.0.5))"
        assert found.time == 5.0

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low", True),
            ("ray.exceptions.RayTaskError(OutOfMemoryError): ray::step()", True),
            ("ray.exceptions.WorkerCrashedError: The worker died unexpectedly", False),
            ("ValueError: OutOfMemoryError): no", False),
        ],
    )
    def test_rays_own_word_of_memory(self, text: str, expected: bool) -> None:
        assert ray.out_of_memory(text) is expected

    @pytest.mark.parametrize(
        "kind",
        ["ray.exceptions.OutOfMemoryError: ", "ray.train.WorkerGroupError: Training failed:\n[Rank 0]:\n"],
    )
    def test_rays_word_of_memory_has_many_lines(self, kind: str) -> None:
        low = "1 worker(s) were killed due to the node running low on memory. Memory on the node was 9GB used"
        traceback = (
            f'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n{kind}{low}\n'
        )
        found = exception(lines(traceback + "- bytes in use: 0\n" * 50))
        assert found is not None
        assert found.text == f"{kind.partition(':')[0]}: {low}"
        assert ray.out_of_memory(found.text)
        assert exception(lines("ValueError".join(traceback.split(kind)) + "- bytes in use: 0\n" * 50)) is None

    def test_why_a_node_has_not_started_is_what_its_process_has_said_last(self, tmp_path: Path) -> None:
        raised = lines("RuntimeError: Failed to start GCS.  Last 1 lines of error files:\n" + PORT_IN_USE)
        found = ray.not_started(raised, {"RAY_TMPDIR": str(tmp_path)})
        assert found is not None
        assert found.text == (
            "RuntimeError: Failed to start GCS.  Last 1 lines of error files: gcs_server: "
            "Check failed: server_ Failed to start the grpc server. The specified port is 6379."
        )
        assert ray.not_started([], {}) is None

    def test_where_ray_does_not_quote_the_log_of_a_process_it_is_read(self, tmp_path: Path) -> None:
        said = "Exception: The current node timed out during startup."
        logs = tmp_path / "ray" / "session_latest" / "logs"
        variables = {"RAY_TMPDIR": str(tmp_path)}
        assert ray.not_started(lines(said), variables) == Line(0.0, said)
        logs.mkdir(parents=True)
        (logs / "raylet.out").write_text(
            "[2026-12-01 05:11:57,238 I 86 86] (raylet) main.cc:1: Setting up\n"
            "[2026-12-01 05:11:57,239 E 86 86] (raylet) main.cc:2: no memory for objects\n"
            "[2026-12-01 05:11:57,240 W 86 86] (raylet) main.cc:3: slow\n"
        )
        found = ray.not_started(lines(said), variables)
        assert found == Line(0.0, f"{said} raylet: no memory for objects")

    def test_which_process_of_a_node_has_died(self) -> None:
        text = (
            "Some Ray subprocesses exited unexpectedly:\n  gcs_server [exit code=-6]\n  raylet [exit code=1]"
        )
        assert ray.died(lines(text)) == ("gcs_server", -6)
        assert ray.died(lines("Local node IP: 10.0.0.1")) is None

    def test_an_echo_is_later_than_what_it_echoes_whatever_the_clocks_say(self) -> None:
        over = Answer(OVER, "slice 0 host 2", failed=Failed(4e9, 9, "OutOfMemory", "it was too much"))
        report = echo(over)
        assert report.time > 4e9
        assert (report.exit_code, report.cause) == (9, "OutOfMemory")
        assert report.error == "stopped, as slice 0 host 2 has failed: it was too much"


class Gang:
    """Launchers of a job with two hosts, and a head if asked for, over a Ray that is not there."""

    def __init__(self, launch: Launch, port: int, folder: Path) -> None:
        self._launch = launch
        self._port = port
        self.folder = folder

    def start(self, script: str, *, headed: bool = False, **changes: str) -> list[Launcher]:
        """All launchers, that of the driver first."""
        if not headed:
            return [self.host(number, script, **changes) for number in range(2)]
        changes["TPU_OPERATOR_HEAD"] = "localhost"
        first = self._start(head(hosts=2), 0, script, changes)
        return [first, *(self.host(number, script, **changes) for number in range(2))]

    def host(self, number: int, script: str, **changes: str) -> Launcher:
        """The launcher of one host."""
        env = variables(launcher="ray", hosts=2, host=number)
        return self._start(env, 0 if number else self._port, script, changes)

    def _start(self, env: dict[str, str], port: int, script: str, changes: dict[str, str]) -> Launcher:
        own = {
            "PYTHONPATH": os.pathsep.join([str(RUNTIME), str(Path(__file__).parent / "fakeray")]),
            "FAKE_RAY": str(self.folder),
            "RAY_TMPDIR": str(self.folder),
            "TPU_OPERATOR_COORDINATOR": f"localhost:{self._port}",
            "TPU_LAUNCH_PORT": str(port),
        }
        return self._launch(env | own | changes, sys.executable, "-c", script)

    @property
    def log(self) -> list[str]:
        """What nodes were started and stopped."""
        return sorted((self.folder / "log").read_text().splitlines())

    def nodes(self) -> list[str]:
        """Nodes that are there."""
        return sorted(file.name.removeprefix("node-") for file in self.folder.glob("node-*"))


@pytest.fixture
def gang(launch: Launch, port: int, tmp_path: Path) -> Iterator[Gang]:
    folder = tmp_path / "ray"
    folder.mkdir()
    yield Gang(launch, port, folder)
    (folder / "go").touch()  # for drivers that have lost their launchers


COUNT = (
    "import os, pathlib; folder = pathlib.Path(os.environ['FAKE_RAY']);"
    "print(len(list(folder.glob('node-*'))), 'nodes at', os.environ['RAY_ADDRESS'])"
)
STAY = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(os.environ.get("CODE", "0"))))
print("driving", flush=True)
while not pathlib.Path(os.environ["FAKE_RAY"], "go").exists():
    time.sleep(0.02)
"""


@pytest.mark.parametrize("headed", [False, True])
def test_the_driver_starts_when_all_nodes_are_there_and_its_end_is_that_of_all(
    gang: Gang, headed: bool
) -> None:
    (gang.folder / "fails-job-0-1").touch()
    launchers = gang.start(COUNT, headed=headed)
    assert [launcher.code() for launcher in launchers] == [0] * len(launchers)
    count = 3 if headed else 2
    assert f"{count} nodes at 127.0.0.1:6379".encode() in launchers[0].stdout
    assert b"[ray] Ray runtime started." in launchers[1].stdout
    assert "ray has not started (exit code 1): try 2 of 10" in launchers[-1].stderr
    assert [launcher.message for launcher in launchers] == [None] * len(launchers)
    assert gang.nodes() == []
    names = ["job-0-0", "job-0-1", "job-head"][:count]
    assert gang.log == [f"{name} {what}" for name in names for what in ("started", "stopped")]


@pytest.mark.parametrize("headed", [False, True])
def test_the_drivers_exit_code_is_everybodys_and_only_its_own_is_the_root_cause(
    gang: Gang, headed: bool
) -> None:
    driver, *others = gang.start("import sys; sys.exit('no data')", headed=headed)
    assert driver.code() == 1
    assert driver.message is not None
    assert (driver.message["cause"], driver.message["error"]) == ("UserError", "no data")
    assert driver.message["host"] == (None if headed else 0)
    for other in others:
        assert other.code() == 1
        assert other.message is not None
        name = "the head" if headed else "slice 0 host 0"
        assert other.message["error"] == f"stopped, as {name} has failed: no data"
        assert other.message["time"] > driver.message["time"]
    assert gang.nodes() == []


def test_a_node_that_dies_is_the_root_cause_and_takes_the_driver_with_it(gang: Gang) -> None:
    driver, worker = gang.start(STAY, CODE="4")
    driver.wait_for("driving")
    (gang.folder / "break-job-0-1").touch()
    assert worker.code() == 1
    assert worker.message is not None
    error = worker.message["error"]
    assert error.startswith("the Ray node of this host has ended: raylet: killed by SIGKILL")
    assert (worker.message["localRank"], worker.message["signal"]) == (None, 9)
    assert driver.code() == 1
    assert driver.message is not None
    assert driver.message["error"] == f"stopped, as slice 0 host 1 has failed: {error}"
    assert driver.message["time"] > worker.message["time"]
    assert gang.nodes() == []


def test_a_node_that_never_starts_says_why(gang: Gang) -> None:
    (gang.folder / "never-job-0-1").write_text("no room in /dev/shm")
    driver, worker = gang.start(STAY)
    assert worker.code() == 1
    assert worker.message is not None
    error = "the Ray node of this host has not started: RuntimeError: no room in /dev/shm"
    assert (worker.message["cause"], worker.message["error"]) == ("UserError", error)
    assert driver.code() == 1
    assert driver.message is not None
    assert driver.message["error"] == f"stopped, as slice 0 host 1 has failed: {error}"


def test_the_node_of_the_driver_dies(gang: Gang) -> None:
    driver, worker = gang.start(STAY)
    driver.wait_for("driving")
    (gang.folder / "break-job-0-0").touch()
    assert driver.code() == 1
    assert driver.message is not None
    assert "raylet" in driver.message["error"]
    assert worker.code() == 1


def test_a_driver_that_is_told_to_stop_has_its_cluster_until_it_ends(gang: Gang) -> None:
    launchers = gang.start(
        "import pathlib, os, signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(0.5)\n"
        "    print(len(list(pathlib.Path(os.environ['FAKE_RAY']).glob('node-*'))), 'left', flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('driving', flush=True)\n"
        "while True: time.sleep(0.02)\n"
    )
    launchers[0].wait_for("driving")
    for launcher in reversed(launchers):
        launcher.signal(signal.SIGTERM)
    for launcher in launchers:
        assert launcher.code() == 0
        assert launcher.message is not None
        assert launcher.message["terminated"] is True
    assert b"2 left" in launchers[0].stdout
    assert gang.nodes() == []


def test_a_host_without_its_head_does_not_stay(gang: Gang) -> None:
    driver, worker = gang.start(STAY)
    driver.wait_for("driving")
    driver.kill()
    assert worker.code() == 69
    assert worker.message is not None
    assert worker.message["error"] == "stopped, as the launcher that keeps the gate is gone"


def test_a_cluster_that_never_is_complete_names_who_is_missing(gang: Gang) -> None:
    driver, worker = gang.start(COUNT, TPU_LAUNCH_GATE_TIMEOUT_SECONDS="3", LACKING="job-0-1")
    assert driver.code() == 69
    assert driver.message is not None
    assert driver.message["cause"] == "StartupTimeout"
    expected = "the Ray cluster is not complete after 3 s: 4 of 8 chips are there, without job-0-1"
    assert driver.message["error"] == expected
    assert worker.code() == 69


SESSIONS = """
import os, pathlib, sys, time
attempt, folder = os.environ["TPU_OPERATOR_ATTEMPT"], pathlib.Path(os.environ["RAY_TMPDIR"])
print("driving", attempt, flush=True)
session = folder / "ray" / "session"
session.mkdir(parents=True)  # fails where there is one
while attempt == "0":
    time.sleep(0.02)
"""


def test_in_place_a_new_cluster_has_nothing_of_the_old_one(gang: Gang) -> None:
    states = [str(gang.folder / f"state-{number}") for number in range(2)]
    for state in states:
        Path(state).mkdir()
    driver, worker = (gang.host(i, SESSIONS, TPU_LAUNCH_STATE_DIR=states[i]) for i in range(2))
    driver.wait_for("driving 0")
    (gang.folder / "break-job-0-1").touch()
    assert worker.code() == 1
    again = gang.host(1, SESSIONS, TPU_LAUNCH_STATE_DIR=states[1])
    assert (driver.code(), again.code()) == (0, 0), driver.stderr
    assert b"driving 1" in driver.stdout
    assert gang.nodes() == []
