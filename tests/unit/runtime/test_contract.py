"""The operator and the launcher agree on the environment of a pod, from both of their sources."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.builders import NOW, decode_pod, job
from tests.unit.runtime.harness import RUNTIME
from tpu_operator.api import Launcher
from tpu_operator.catalog import resolve
from tpu_operator.core.environment import GangSpec, Place, tpu_environment
from tpu_operator.core.failures import failure_of
from tpu_operator.core.jobview import gang_spec
from tpu_operator.core.objects.pods import PodFactory
from tpu_operator.core.report import read
from tpu_operator.core.settings import PodSettings
from tpu_runtime.environment import read_environment
from tpu_runtime.output import Line
from tpu_runtime.report import Report, render

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("launcher", list(Launcher))
@pytest.mark.parametrize(
    ("accelerator", "topology"), [("v5e", "4x4"), ("v5e", "1x1"), ("v5p", "2x2x4"), ("tpu7x", "2x2x2")]
)
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("emulate", ["", "cpu"])
def test_what_the_operator_sets_is_what_the_launcher_wants(
    launcher: Launcher, accelerator: str, topology: str, slices: int, emulate: str
) -> None:
    shape = resolve(accelerator, topology)
    processes = shape.devices_per_host if launcher is Launcher.TORCHRUN else 1
    gang = GangSpec(
        kind="TPUJob",
        shape=shape,
        num_slices=slices,
        launcher=launcher,
        processes_per_host=processes,
        gate_seconds=900,
        name="train",
        subdomain="train",
        namespace="ml",
        uid="1",
    )
    for index in range(slices):
        for host in range(shape.hosts):
            place = Place(index, host, attempt=7, process_ports=tuple(range(8476, 8476 + processes)))
            read = read_environment(tpu_environment(gang, place, PodSettings("r", "l", emulate)))
            assert (read.place.job, read.place.attempt) == ("TPUJob/ml/train/1", 7)
            assert read.place.index == index * shape.hosts + host
            assert read.processes == processes
            if slices * shape.hosts > 1:
                assert read.coordinator == ("train-0-0.train", gang.launcher_port)


@pytest.mark.parametrize("containers", [1, 2, 4, 8, 12])
@pytest.mark.parametrize("terminated", [False, True])
def test_a_report_is_read_although_the_kubelet_cuts_it(containers: int, terminated: bool) -> None:
    log = [Line(0.0, f'step {number}: {{"loss": 1.5,"log":"x"}} é') for number in range(999)]
    report = Report("OutOfMemory", 137, 1.5, "e" * 450, signal=9, log=log, terminated=terminated)
    message = render(report, {})[: 12 * 1024 // containers]
    found = read(message.decode(errors="replace"))
    assert found is not None
    assert (found.cause, found.time, found.signal) == ("OutOfMemory", 1.5, 9)
    assert (found.error, found.terminated) == ("e" * 450, terminated)


def test_what_a_preflight_has_found_is_read_from_its_pod(tmp_path: Path) -> None:
    wrong = {"name": "TPU_LIBRARY_PATH", "value": "/nowhere/libtpu.so"}
    the_job = job(run={"command": ["sh"], "launcher": "none", "preflight": True, "env": [wrong]})
    settings = PodSettings("r", "l", "cpu")
    manifest = PodFactory(the_job, gang_spec(the_job), settings).worker(0, 2, 0).manifest
    (doctor,) = manifest["spec"]["initContainers"]
    env = {variable["name"]: variable["value"] for variable in doctor["env"]}
    message = tmp_path / "message"
    ours = {"PYTHONPATH": str(RUNTIME), "TPU_LAUNCH_TERMINATION_LOG": str(message)}
    command = [sys.executable, "-S", "-m", "tpu_runtime", *doctor["command"][1:], "--skip=ports"]
    done = subprocess.run(command, env=env | ours, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout
    ended = {"exitCode": 2, "message": message.read_text()}
    status = {"name": doctor["name"], "state": {"terminated": ended}}
    failure = failure_of(decode_pod(manifest, phase="Failed", initContainerStatuses=[status]), NOW)
    assert failure is not None
    assert (failure.cause, failure.container, failure.host) == ("LauncherError", "tpu-doctor", 2)
    expected = "preflight: TPU_LIBRARY_PATH=/nowhere/libtpu.so does not exist (unset it, or correct it)"
    assert failure.message == expected
