"""Changes in what the schema leaves open: pod templates and sources of variables.

The API server judges these when the pods are made, and the operator shows its words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.cluster.operations.changes import Change
from tests.cluster.operations.fields import UNSET

if TYPE_CHECKING:
    from tests.cluster.operations.fields import Object

CLEAN: Final[Object] = {"template": UNSET, "head": UNSET, "run.env": UNSET}
"""Without what an earlier change may have been refused for."""
REFUSED: Final = "CreateRefused"
CONFLICT: Final = "EnvironmentConflict"


def _main(**fields: Any) -> Object:
    return {"containers": [{"name": "main", **fields}]}


POD_SPECS: Final[list[Object]] = [
    {"nodeSelector": {"kubernetes.io/os": "linux"}},
    {"tolerations": [{"key": "example.com/gpu", "operator": "Exists"}], "terminationGracePeriodSeconds": 5},
    {"containers": [{"name": "side", "image": "example/side:1"}]},
    _main(env=[{"name": "A", "value": "b"}, {"name": "TPU_NAME", "value": "mine"}], image="example/train:3"),
    {"subdomain": "elsewhere", "hostNetwork": True},
    {
        "initContainers": [{"name": "first", "image": "example/first:1"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    },
    {"affinity": {"podAffinity": None}, "enableServiceLinks": None, "serviceAccountName": "default"},
]
"""Specs of pods that a person would write."""

BAD_POD_SPECS: Final[list[tuple[Object, str, tuple[str, ...]]]] = [
    ({"containers": "x"}, CONFLICT, (r"spec\.template\.spec\.containers: Expected",)),
    ({"containers": [{"image": "x"}]}, CONFLICT, (r"spec\.template\.spec\.containers\[0\]", "name")),
    (_main(env=[{"name": "A", "value": 1}]), CONFLICT, (r"containers\[0\]\.env\[0\]\.value: Expected",)),
    ({"nodeSelector": {"a": 1}}, CONFLICT, (r"spec\.template\.spec\.nodeSelector",)),
    ({"hostname": "mine"}, CONFLICT, (r"spec\.template\.spec\.hostname is 'mine'",)),
    ({"restartPolicy": "Always"}, CONFLICT, (r"spec\.template\.spec\.restartPolicy is 'Always'",)),
    (
        {"nodeSelector": {"cloud.google.com/gke-tpu-topology": "8x8"}},
        CONFLICT,
        (
            r"spec\.template\.spec\.nodeSelector\[cloud\.google\.com/gke-tpu-topology\] is '8x8'",
            "needs '2x2'",
        ),
    ),
    (_main(command=["sh"]), CONFLICT, (r"containers\[main\]\.command", "use spec.run.command")),
    (_main(resources={"limits": {"google.com/tpu": 1}}), CONFLICT, ("ask for 1 google.com/tpu", "has 4")),
    ({"dnsPolicy": "Sometimes"}, REFUSED, (r"spec\.dnsPolicy", "Sometimes")),
    ({"containers": [{"name": "A B", "image": "x"}]}, REFUSED, (r"spec\.containers\[1\]\.name", "A B")),
    ({"terminationGracePeriodSeconds": "x"}, CONFLICT, ("terminationGracePeriodSeconds", "got `str`")),
    ({"nodeSelecter": {"a": "b"}}, REFUSED, (r"unknown field \"spec\.nodeSelecter\"",)),
    (_main(imagePullPolicy="x"), REFUSED, (r"spec\.containers\[0\]\.imagePullPolicy", '"x"')),
    ({"serviceAccountName": "nobody"}, REFUSED, ("serviceaccount", "nobody")),
]
"""Specs from which no pod can be made: with the reason, and what has to be said."""

BAD_HEADS: Final[list[tuple[Object, str, tuple[str, ...]]]] = [
    ({}, REFUSED, (r"-head", r"spec\.containers: Required value")),
    (
        {"containers": [{"name": "driver"}]},
        REFUSED,
        (r"-head", r"spec\.containers\[0\]\.image: Required value"),
    ),
    ({"containers": [], "hostname": "mine"}, CONFLICT, (r"spec\.head\.spec\.hostname is 'mine'",)),
    ({"containers": [{"name": 1}]}, CONFLICT, (r"spec\.head\.spec\.containers\[0\]\.name: Expected",)),
]

SOURCES: Final[list[Object]] = [
    {"secretKeyRef": {"name": "s", "key": "k", "optional": True}},
    {"resourceFieldRef": {"resource": "limits.cpu"}},
]

BAD_SOURCES: Final[list[tuple[Object, str, tuple[str, ...]]]] = [
    ({}, REFUSED, (r"spec\.containers\[0\]\.env\[\d+\]\.valueFrom", "Invalid value|must specify one of")),
    (
        {"fieldRef": {"fieldPath": "status.bogus"}},
        REFUSED,
        (r"valueFrom\.fieldRef\.fieldPath", "status.bogus"),
    ),
    ({"fieldRef": "x"}, REFUSED, ("fieldRef|FieldRef|valueFrom",)),
    ({"bogus": {}}, REFUSED, ("unknown field", "bogus")),
]

BAD_METADATA: Final[list[tuple[str, Object, str, tuple[str, ...]]]] = [
    ("labels", {"team": "a b"}, REFUSED, (r"metadata\.labels", "a b")),
    (
        "labels",
        {"tpu-operator.dev/job": "x"},
        CONFLICT,
        (r"spec\.template\.metadata\.labels\[tpu-operator\.dev/job\]",),
    ),
    ("annotations", {"a b": "c"}, REFUSED, (r"metadata\.annotations", "a b")),
]


def changes() -> list[Change]:
    """All of them."""
    good = [Change("template.spec", "change", {"template.spec": spec}) for spec in POD_SPECS]
    sources = [{"run.env": [{"name": "A", "valueFrom": source}]} for source in SOURCES]
    return [
        *good,
        *(Change("run.env[].valueFrom", "change", source) for source in sources),
        *(_blocked("template.spec", spec, reason, says) for spec, reason, says in BAD_POD_SPECS),
        *(_blocked("head.spec", spec, reason, says) for spec, reason, says in BAD_HEADS),
        *(_blocked(f"template.metadata.{key}", each, why, says) for key, each, why, says in BAD_METADATA),
        *(_blocked("run.env[].valueFrom", source, reason, says) for source, reason, says in BAD_SOURCES),
    ]


def _blocked(path: str, value: Object, reason: str, says: tuple[str, ...]) -> Change:
    clean = dict.fromkeys(CLEAN, UNSET)
    return Change(path, "blocked", clean | {path: value}, says, reason)
