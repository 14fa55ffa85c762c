"""Commands that need no cluster: topologies and explain; and what top and exec make of their input."""

from __future__ import annotations

import argparse
from typing import ClassVar

import msgspec
import pytest

from tests.builders import node, node_pool
from tests.unit.cli.scenes import PLAIN, Screen
from tpu_operator.api import BlockedReason, Cause
from tpu_operator.catalog import GENERATIONS, resolve
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli import explain, launchers, top, topologies
from tpu_operator.cli.command import CommandError, Place
from tpu_operator.cli.execute import arguments
from tpu_operator.cli.pools import pools
from tpu_operator.core.snapshot import Pod


def shown(*words: str) -> str:
    screen = Screen()
    assert command_line.call(words, screen) == 0
    return screen.text


class TestTopologies:
    def test_each_is_a_slice_that_exists(self) -> None:
        for one in topologies.topologies(GENERATIONS):
            shape = resolve(one.accelerator, one.topology, one.chips_per_host)
            assert (shape.chips, shape.hosts) == (one.chips, one.hosts)

    def test_those_that_have_two_forms_say_so(self) -> None:
        lines = [line for line in shown("topologies", "v5e").splitlines() if "2x4" in line]
        assert lines == [
            "v5e          2x4       8      2      4           with chipsPerHost: 4",
            "v5e          2x4       8      1      8           with chipsPerHost: 8",
        ]

    def test_large_shapes_are_described(self) -> None:
        assert "v5p, larger ones: AxBxC with A <= B <= C" in shown("topologies", "v5p")
        assert shown("topologies", "tpu-v5p-slice") == shown("topologies", "v5p")

    def test_an_unknown_accelerator(self) -> None:
        with pytest.raises(CommandError, match="v9 is not in the catalog"):
            topologies._chosen("v9")

    def test_node_pools(self) -> None:
        cordoned = node("pool-b-0", "pool-b", unschedulable=True)
        wire = {
            "metadata": {"name": "big-0-0", "namespace": "team-b", "labels": {"tpu-operator.dev/job": "big"}},
            "spec": {"nodeName": "pool-a-0"},
        }
        pods = [msgspec.convert(wire, Pod)]
        found = pools([*node_pool("pool-a").values(), cordoned], pods)
        assert topologies.draw_pools(found, PLAIN) == [
            "NODE POOL  ACCELERATOR           TOPOLOGY  CHIPS/HOST  HOSTS  USABLE  HELD BY",
            "pool-a     tpu-v5-lite-podslice  4x4       4           4/4    4       team-b/big",
            "pool-b     tpu-v5-lite-podslice  4x4       4           1/4    0       free",
        ]
        assert "may not look" in topologies.draw_pools(pools([cordoned], None), PLAIN)[1]
        assert topologies.draw_pools([], PLAIN) == ["the cluster has no nodes with TPUs of that kind"]


class TestExplain:
    @pytest.mark.parametrize("word", [*BlockedReason, *Cause, "MaxRestartsReached", "capacityinuse"])
    def test_words(self, word: str) -> None:
        entry = explain.explain(word)
        assert entry.description
        assert entry.remedies
        assert not any("{job}" in remedy for remedy in entry.remedies)

    @pytest.mark.parametrize("path", ["spec.tpu.topology", "tpujob.spec.tpu.topology", "SPEC.TPU.Topology"])
    def test_fields(self, path: str) -> None:
        entry = explain.explain(path)
        assert entry.name == "tpujob.spec.tpu.topology"
        assert entry.type == "string"
        assert "Chips of a slice" in entry.description

    def test_fields_below(self) -> None:
        entry = explain.explain("spec.failurePolicy.rules")
        assert entry.fields[-1][:2] == ("action*", "Restart, RestartUncounted, FailJob, Ignore")
        assert explain.explain("spec.run.env[].name").type == "string"

    @pytest.mark.parametrize("kind", ["tpuinference", "tpui", "TPUInferences"])
    def test_fields_of_other_kinds(self, kind: str) -> None:
        entry = explain.explain(f"{kind}.spec.roles.tpu")
        assert entry.name == "tpuinference.spec.roles.tpu"
        assert "accelerator*" in {name for name, _, _ in entry.fields}

    def test_a_kind(self) -> None:
        assert {"spec*", "status"} <= {name for name, _, _ in explain.explain("tpujob").fields}

    def test_what_does_not_exist(self) -> None:
        with pytest.raises(CommandError, match="has no such field") as error:
            explain.explain("spec.tpu.topologie")
        assert error.value.advice == "did you mean topology?"

    def test_as_text(self) -> None:
        lines = shown("explain", "spec.tpu").splitlines()
        assert lines[0] == "tpujob.spec.tpu  <object>"
        assert any(line.startswith("  accelerator*") for line in lines)


class TestTop:
    METRICS = """# HELP tpu_launch_gate_seconds Seconds.
# TYPE tpu_launch_gate_seconds gauge
tpu_launch_gate_seconds 3.5
# TYPE tpu_launch_gate_passed gauge
tpu_launch_gate_passed 1
# TYPE tpu_launch_processes_running gauge
tpu_launch_processes_running 4
# TYPE tpu_launch_heartbeat_age_seconds gauge
tpu_launch_heartbeat_age_seconds 130
"""
    POD: ClassVar = {
        "metadata": {"name": "train-0-0"},
        "spec": {
            "nodeName": "node-a",
            "containers": [{"name": "main", "ports": [{"name": "launcher", "containerPort": 8100}]}],
        },
    }

    def test_all_that_is_known(self) -> None:
        usage = {"containers": [{"name": "main", "usage": {"cpu": "12", "memory": "30Gi"}}]}
        row = top.row(self.POD, usage, self.METRICS)
        assert top.draw([row], PLAIN, usage=True)[1] == (
            "train-0-0  node-a  12   30Gi    4          passed in 3s  2m10s"
        )

    def test_what_is_not_known(self) -> None:
        lines = top.draw([top.row(self.POD, None, None)], PLAIN, usage=False)
        assert lines[1] == "train-0-0  node-a  -    -       -          -     -"
        assert "metrics server" in lines[2]

    def test_a_host_at_the_gate(self) -> None:
        text = self.METRICS.replace("gate_passed 1", "gate_passed 0")
        assert "waits 3s" in top.draw([top.row(self.POD, None, text)], PLAIN, usage=True)[1]

    def test_the_launchers_port(self) -> None:
        assert launchers.port(self.POD) == 8100
        assert launchers.port({"spec": {"containers": [{"name": "main"}]}}) == 8090


def test_exec_is_a_command_line_of_kubectl() -> None:
    options = argparse.Namespace(container="main")
    place = Place("kube", "here", "team-a")
    assert arguments("train-0-1", options, place, ["ls", "-l"], tty=True) == [
        "kubectl",
        "exec",
        "--kubeconfig=kube",
        "--context=here",
        "--namespace=team-a",
        "--stdin",
        "--tty",
        "--container=main",
        "train-0-1",
        "--",
        "ls",
        "-l",
    ]
    assert arguments("train-0-1", options, Place(), [], tty=False)[2:] == [
        "--stdin",
        "--container=main",
        "train-0-1",
        "--",
        "/bin/sh",
    ]
