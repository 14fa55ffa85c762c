"""The operator and the launcher agree on the environment of a pod, from both of their sources."""

from __future__ import annotations

import pytest

from tpu_operator.api import Launcher
from tpu_operator.catalog import resolve
from tpu_operator.core.environment import GangSpec, Place, tpu_environment
from tpu_operator.core.settings import PodSettings
from tpu_runtime.environment import read_environment

HEADLESS = {"name": "train", "subdomain": "train", "namespace": "ml", "uid": "1"}


@pytest.mark.parametrize("launcher", [Launcher.NONE, Launcher.JAX, Launcher.TORCHRUN])
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
        **HEADLESS,
    )
    for index in range(slices):
        for host in range(shape.hosts):
            place = Place(index, host, attempt=7, process_ports=tuple(range(8476, 8476 + processes)))
            read = read_environment(tpu_environment(gang, place, PodSettings("r", "l", emulate)))
            assert (read.place.job, read.place.attempt) == ("TPUJob/ml/train", 7)
            assert read.place.index == index * shape.hosts + host
            assert read.processes == processes
            if slices * shape.hosts > 1:
                assert read.coordinator == ("train-0-0.train", 8090)
