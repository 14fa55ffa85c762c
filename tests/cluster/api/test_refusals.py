"""Objects that the real API server must refuse, with messages that say what to write, or accept."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api.client import Jobs, job
from tpu_operator.catalog import GENERATIONS, CatalogError, resolve

TOPOLOGIES = Path(__file__).parents[2] / "unit" / "catalog" / "topologies.tsv"

AT_LEAST_0 = "should be greater than or equal to 0"
AT_LEAST_1 = "should be greater than or equal to 1"

REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    # Accelerator, topology and the division into hosts.
    "malformed topology": (
        {"tpu.topology": "banana"},
        ['spec.tpu.topology: Invalid value: "banana": must be the chips in each dimension, such as 4x4'],
    ),
    "topology with a hole": ({"tpu.topology": "4x"}, ["spec.tpu.topology", '"4x": must be the chips']),
    "topology of four dimensions": (
        {"tpu.topology": "2x2x2x2"},
        ["spec.tpu.topology", '"2x2x2x2": must be the chips'],
    ),
    "topology with a zero": ({"tpu.topology": "0x4"}, ["spec.tpu.topology", '"0x4": must be the chips']),
    "topology with a line break": ({"tpu.topology": "4x4\n"}, ["spec.tpu.topology", "must be the chips in"]),
    "accelerator with a line break": (
        {"tpu.accelerator": "v5e\n"},
        ["spec.tpu.accelerator", r'"v5e\n" is unknown: write one of v4'],
    ),
    "missing topology": ({"tpu.topology": None}, ["spec.tpu.topology: Required value"]),
    "missing accelerator": ({"tpu.accelerator": None}, ["spec.tpu.accelerator: Required value"]),
    "missing tpu": ({"tpu": None}, ["spec.tpu: Required value"]),
    "3D topology on a 2D accelerator": (
        {"tpu.topology": "2x2x4"},
        ["spec.tpu.topology", "'2x2x4' does not exist on v5e: write one of 1x1, 2x2, 2x4, 4x4, 4x8"],
    ),
    "2D topology on a 3D accelerator": (
        {"tpu.accelerator": "v5p"},
        [
            "spec.tpu.topology",
            "'4x4' does not exist on v5p: write one of 2x2x1, 2x2x2, 2x2x4, 2x4x4, or",
        ],
    ),
    "dimensions out of order": (
        {"tpu.accelerator": "v4", "tpu.topology": "8x4x4"},
        ["spec.tpu.topology", "'8x4x4' does not exist on v4", "A <= B <= C, all multiples of 4"],
    ),
    "more chips than a pod": (
        {"tpu.accelerator": "tpu7x", "tpu.topology": "24x24x24"},
        ["spec.tpu.topology", "'24x24x24' does not exist on tpu7x", "at most 9216 chips"],
    ),
    "unknown accelerator": (
        {"tpu.accelerator": "v9"},
        [
            "spec.tpu.accelerator",
            '"v9" is unknown: write one of v4, v5e, v5p, v6e, tpu7x',
            "or set chipsPerHost",
        ],
    ),
    "accelerator in capitals": ({"tpu.accelerator": "V5E"}, ["spec.tpu.accelerator", '"V5E" is unknown']),
    "accelerator that is no label value": (
        {"tpu.accelerator": "v 9", "tpu.chipsPerHost": 4},
        ["spec.tpu.accelerator", "must be a label value"],
    ),
    "chips of an unknown accelerator that do not divide into hosts": (
        {"tpu.accelerator": "v9", "tpu.chipsPerHost": 3},
        ["spec.tpu.chipsPerHost", "3 does not divide the 16 chips of 4x4 into hosts"],
    ),
    "ambiguous 2x4": (
        {"tpu.topology": "2x4"},
        ["spec.tpu.chipsPerHost: Required value: 2x4 is 1 host of 8 chips or 2 hosts of 4: write 8 or 4"],
    ),
    "ambiguous 2x4 by label value": (
        {"tpu.accelerator": "tpu-v6e-slice", "tpu.topology": "2x4"},
        ["spec.tpu.chipsPerHost: Required value", "write 8 or 4"],
    ),
    "chipsPerHost of no machine": (
        {"tpu.topology": "2x4", "tpu.chipsPerHost": 2},
        ["spec.tpu.chipsPerHost", "2 does not fit 2x4 on v5e: write 8 or 4"],
    ),
    "chipsPerHost of another machine": (
        {"tpu.chipsPerHost": 8},
        ["spec.tpu.chipsPerHost", "8 does not fit 4x4 on v5e: write 4"],
    ),
    "chipsPerHost for more hosts than the topology has": (
        {"tpu.accelerator": "v4", "tpu.topology": "2x2x4", "tpu.chipsPerHost": 1},
        ["spec.tpu.chipsPerHost", "1 does not fit 2x2x4 on v4: write 4"],
    ),
    "chipsPerHost on one chip": (
        {"tpu.topology": "1x1", "tpu.chipsPerHost": 4},
        ["spec.tpu.chipsPerHost", "4 does not fit 1x1 on v5e: write 1"],
    ),
    "no chips per host": ({"tpu.chipsPerHost": 0}, ["spec.tpu.chipsPerHost", AT_LEAST_1]),
    # Counts.
    "no slices": ({"tpu.slices": 0}, ["spec.tpu.slices", AT_LEAST_1]),
    "negative slices": ({"tpu.slices": -1}, ["spec.tpu.slices", AT_LEAST_1]),
    "a million slices": ({"tpu.slices": 1_000_001}, ["spec.tpu.slices", "less than or equal to 1024"]),
    "negative spare slices": (
        {"tpu.spareSlices": -1},
        ["spec.tpu.spareSlices", AT_LEAST_0],
    ),
    "a million spare slices": (
        {"tpu.spareSlices": 1_000_001},
        ["spec.tpu.spareSlices", "less than"],
    ),
    "a topology of a billion hosts": (
        {"tpu.accelerator": "v9", "tpu.topology": "999x999x999", "tpu.chipsPerHost": 1},
        ["spec.tpu.topology", "999x999x999 times 1 slices is 997002999 hosts: a job may have 16384 at most"],
    ),
    "a million hosts in slices": (
        {"tpu.accelerator": "v5p", "tpu.topology": "16x16x24", "tpu.slices": 1000, "tpu.spareSlices": 24},
        ["spec.tpu.topology", "16x16x24 times 1024 slices is 1572864 hosts"],
    ),
    "slices in words": ({"tpu.slices": "two"}, ["spec.tpu.slices", "must be of type integer"]),
    "negative restarts": (
        {"failurePolicy.maxRestarts": -1},
        ["spec.failurePolicy.maxRestarts", AT_LEAST_0],
    ),
    "no deadline": (
        {"activeDeadlineSeconds": 0},
        ["spec.activeDeadlineSeconds", AT_LEAST_1],
    ),
    "no startup time": ({"startupTimeoutSeconds": 0}, ["spec.startupTimeoutSeconds", AT_LEAST_1]),
    "negative time to live": (
        {"ttlSecondsAfterFinished": -1},
        ["spec.ttlSecondsAfterFinished", AT_LEAST_0],
    ),
    "absurd time to live": (
        {"ttlSecondsAfterFinished": 10**12},
        ["ttlSecondsAfterFinished", "less than"],
    ),
    "coalescing for a day": ({"failurePolicy.coalesceSeconds": 86400}, ["coalesceSeconds", "equal to 3600"]),
    # What runs.
    "missing run": ({"run": None}, ["spec.run: Required value"]),
    "missing command": ({"run.command": None}, ["spec.run.command: Required value"]),
    "empty command": ({"run.command": []}, ["spec.run.command", "should have at least 1 items"]),
    "unknown launcher": (
        {"run.launcher": "mpi"},
        ["spec.run.launcher: Unsupported value", '"torchrun", "ray", "jax", "none"'],
    ),
    "no processes": (
        {"run.processesPerHost": 0},
        ["spec.run.processesPerHost", AT_LEAST_1],
    ),
    "more processes than devices": (
        {"run.processesPerHost": 5},
        ["spec.run.processesPerHost", "5 is more than one per device: write 1 to 4"],
    ),
    "more processes than the devices of dual chips": (
        {"tpu.accelerator": "tpu7x", "tpu.topology": "2x2x1", "run.processesPerHost": 9},
        ["spec.run.processesPerHost", "9 is more than one per device: write 1 to 8"],
    ),
    "several processes with ray": (
        {"run.launcher": "ray", "run.processesPerHost": 4},
        ["spec.run.processesPerHost", "must be 1 or absent with launcher ray"],
    ),
    "the same variable twice": (
        {"run.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        ['spec.run.env[1]: Duplicate value: {"name":"A"}'],
    ),
    "variable with two values": (
        {"run.env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]},
        ["spec.run.env[0].valueFrom", "must not be set together with value"],
    ),
    "variable with a bad name": (
        {"run.env": [{"name": "1A", "value": "1"}]},
        ["spec.run.env[0].name", "must be letters, digits, '_', '-' or '.', not starting with a digit"],
    ),
    "variable that is a number": ({"run.env": [{"name": "A", "value": 1}]}, ["env[0].value", "type string"]),
    "resources that are no quantity": (
        {"run.resources": {"limits": {"cpu": "many"}}},
        ["spec.run.resources.limits[cpu]", "must be a quantity, such as 4, 500m or 16Gi"],
    ),
    "compile cache in no place": (
        {"run.compileCache": {}},
        ["spec.run.compileCache", "set exactly one of persistentVolumeClaim, hostPath and uri"],
    ),
    "compile cache in two places": (
        {"run.compileCache": {"hostPath": "/cache", "uri": "gs://bucket/cache"}},
        ["spec.run.compileCache", "set exactly one of"],
    ),
    "compile cache in a relative path": (
        {"run.compileCache": {"hostPath": "cache"}},
        ["spec.run.compileCache.hostPath", "must be an absolute path, such as /var/cache/tpu"],
    ),
    "compile cache at no URI": (
        {"run.compileCache": {"uri": "bucket"}},
        ["spec.run.compileCache.uri", "must be a URI, such as gs://bucket/path"],
    ),
    # Policies.
    "two kinds of capacity": (
        {"tpu.capacity": {"spot": True, "reservation": "mine"}},
        ["spec.tpu.capacity", "keep one of spot, flexStart, reservation and provisioningRequest"],
    ),
    "rule about nothing": (
        {"failurePolicy.rules": [{"action": "Ignore"}]},
        ["spec.failurePolicy.rules[0]", "set onCauses, onExitCodes or onMessage"],
    ),
    "rule without action": (
        {"failurePolicy.rules": [{"onCauses": ["Hang"]}]},
        ["spec.failurePolicy.rules[0].action: Required value"],
    ),
    "rule about an unknown cause": (
        {"failurePolicy.rules": [{"action": "Ignore", "onCauses": ["Bug"]}]},
        ["spec.failurePolicy.rules[0].onCauses[0]: Unsupported value", '"UserError"'],
    ),
    "rule about success": (
        {"failurePolicy.rules": [{"action": "Ignore", "onExitCodes": [0]}]},
        ["spec.failurePolicy.rules[0].onExitCodes[0]", AT_LEAST_1],
    ),
    "unknown success policy": (
        {"successPolicy": "Any"},
        ["spec.successPolicy: Unsupported", '"Leader"'],
    ),
    "queue that is no name": (
        {"scheduling.queueName": "My Queue"},
        ["spec.scheduling.queueName", "must be the name of an object"],
    ),
    "manager without a domain": (
        {"managedBy": "kueue"},
        ["spec.managedBy", "must be a domain and a name, such as kueue.x-k8s.io/multikueue"],
    ),
    "misspelt field": ({"sucessPolicy": "All"}, ['unknown field "spec.sucessPolicy"']),
    "misspelt field of the template": ({"template": {"sepc": {}}}, ['unknown field "spec.template.sepc"']),
}

REFUSED_NAMES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "name with a dot": ("a.b", {}, ["metadata.name", "lower-case letters, digits or '-'"]),
    "name that starts with a digit": ("1a", {}, ["metadata.name", "starting with a letter"]),
    "name too long for the pods": (
        "n" * 60,
        {},
        [
            "metadata.name",
            "60 characters make pod names <name>-<slice>-<host> longer than 63",
            "at most 59",
        ],
    ),
    "name too long for many pods": (
        "n" * 57,
        {"tpu": {"accelerator": "v5p", "topology": "8x16x16", "slices": 90, "spareSlices": 20}},
        ["metadata.name", "57 characters", "write at most 55"],
    ),
    "name too long for the head": (
        "n" * 59,
        {"head": {"spec": {"containers": [{"name": "main"}]}}},
        ["metadata.name", "59 characters make pod names <name>-head longer than 63: write at most 58"],
    ),
}

ACCEPTED: dict[str, tuple[str, dict[str, Any]]] = {
    "the smallest job": ("hello", {}),
    "the longest name": ("n" * 59, {}),
    "the longest name with a head": ("n" * 58, {"head": {"spec": {"containers": [{"name": "main"}]}}}),
    "2x4 as one host": ("hello", {"tpu.topology": "2x4", "tpu.chipsPerHost": 8}),
    "2x4 as two hosts": ("hello", {"tpu.topology": "2x4", "tpu.chipsPerHost": 4}),
    "one chip": ("hello", {"tpu.topology": "1x1", "run.processesPerHost": 1}),
    "label value": ("hello", {"tpu.accelerator": "tpu-v5-lite-podslice"}),
    "unknown accelerator with chipsPerHost": (
        "hello",
        {
            "tpu.accelerator": "tpu8i",
            "tpu.topology": "4x8x2",
            "tpu.chipsPerHost": 4,
            "run.processesPerHost": 16,
        },
    ),
    "more than the documented largest job": ("hello", {"tpu.accelerator": "v5p", "tpu.topology": "16x20x28"}),
    "a process per device of dual chips": (
        "hello",
        {"tpu.accelerator": "tpu7x", "tpu.topology": "2x2x1", "run.processesPerHost": 8},
    ),
    "variables that the operator sets too": ("hello", {"run.env": [{"name": "TPU_WORKER_ID", "value": "7"}]}),
    "everything": (
        "hello",
        {
            "tpu.slices": 2,
            "tpu.spareSlices": 1,
            "tpu.capacity": {"reservation": "mine", "nodePool": "pool-a"},
            "run.image": "registry.example/train:1",
            "run.args": ["--steps=10"],
            "run.env": [
                {"name": "A", "value": ""},
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            "run.workingDir": "/work",
            "run.resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "16Gi", "cpu": 4}},
            "run.launcher": "ray",
            "run.compileCache": {"persistentVolumeClaim": "cache"},
            "template": {"metadata": {"labels": {"team": "a"}}, "spec": {"hostNetwork": True}},
            "head": {"spec": {"containers": [{"name": "main", "image": "driver"}]}},
            "failurePolicy": {
                "maxRestarts": 0,
                "restartScope": "Slice",
                "restartStrategy": "InPlace",
                "coalesceSeconds": 0,
                "rules": [
                    {"onCauses": ["Hang"], "onExitCodes": [1, 255], "onMessage": "nan", "action": "FailJob"}
                ],
            },
            "successPolicy": "Leader",
            "suspend": True,
            "activeDeadlineSeconds": 3600,
            "startupTimeoutSeconds": 600,
            "ttlSecondsAfterFinished": 0,
            "scheduling": {
                "gang": "PodGroup",
                "queueName": "team-a",
                "priorityClassName": "high",
                "placement": "Shared",
            },
            "maintenance": {"onNotice": "Restart", "leadSeconds": 60},
            "managedBy": "kueue.x-k8s.io/multikueue",
        },
    ),
}


@pytest.mark.parametrize(("changes", "fragments"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(jobs: Jobs, changes: dict[str, Any], fragments: list[str]) -> None:
    message = jobs.refusal(job(changes))
    assert message
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize(("name", "changes", "fragments"), REFUSED_NAMES.values(), ids=REFUSED_NAMES.keys())
def test_names_refused(jobs: Jobs, name: str, changes: dict[str, Any], fragments: list[str]) -> None:
    message = jobs.refusal(job(changes, name=name))
    assert message
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize(("name", "changes"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(jobs: Jobs, name: str, changes: dict[str, Any]) -> None:
    assert jobs.refusal(job(changes, name=name)) == ""


def sample() -> list[tuple[str, str, int | None]]:
    """Return requests on both sides of every rule of the catalog, and some from the middle."""
    rows = list(csv.DictReader(TOPOLOGIES.read_text().splitlines(), delimiter="\t"))
    listed = [row["topology"] for row in rows if int(row["chips"]) <= 64] + [
        row["topology"] for row in rows[::40]
    ]
    edges = [
        "3x3",
        "4x2",
        "32x32",
        "4x4x2",
        "2x2x8",
        "16x16x20",
        "16x20x28",
        "16x24x24",
        "4x4x256",
        "4x4x260",
    ]
    return [
        (generation.name, topology, chips_per_host)
        for generation in GENERATIONS
        for topology in dict.fromkeys([*listed, *edges])
        for chips_per_host in ((None, 1, 2, 4, 8) if topology.count("x") == 1 else (None, 4))
    ]


def test_server_and_catalog_agree_on_which_slices_exist(jobs: Jobs) -> None:
    for accelerator, topology, chips_per_host in sample():
        tpu = {"accelerator": accelerator, "topology": topology}
        try:
            resolve(accelerator, topology, chips_per_host)
            exists = True
        except CatalogError:
            exists = False
        chosen = {} if chips_per_host is None else {"chipsPerHost": chips_per_host}
        message = jobs.refusal(job({"tpu": tpu | chosen}))
        assert (message == "") == exists, (accelerator, topology, chips_per_host, message)
