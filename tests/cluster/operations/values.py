"""What each field of the spec may and may not be set to.

Most of it follows from the schema. What does not, since a rule in CEL or Kubernetes' own types stand behind
it, is written down here by path; a field that needs it and has none fails the tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.cluster.operations.fields import KEY, KEYS, UNSET, Field, skeleton

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.cluster.operations.fields import Object

BASE: Final[Object] = {
    "tpu": {"accelerator": "v5e", "topology": "2x2"},
    "run": {"command": ["python", "train.py"]},
}
"""One host; most of what can change about a job shows on it."""

ONE_KIND: Final = ("spot", "flexStart", "reservation", "provisioningRequest")
ONE_PLACE: Final = ("persistentVolumeClaim", "hostPath", "uri")


def _without_others(parent: str, names: tuple[str, ...]) -> dict[str, Object]:
    return {
        f"{parent}.{name}": {f"{parent}.{other}": UNSET for other in names if other != name} for name in names
    }


NEEDS: Final[Mapping[str, Object]] = {
    "tpu.accelerator": {"tpu.chipsPerHost": 4},
    "tpu.topology": {"tpu.chipsPerHost": 4},
    "tpu.chipsPerHost": {"tpu.topology": "2x4"},
    "run.processesPerHost": {"run.launcher": "torchrun"},
    "run.launcher": {"run.processesPerHost": UNSET},
    "run.env[].value": {"run.env[].valueFrom": UNSET},
    "run.env[].valueFrom": {"run.env[].value": UNSET},
    "failurePolicy.rules[].onExitCodes": {"failurePolicy.rules[].onMessage": "nan"},
    "failurePolicy.rules[].action": {"failurePolicy.rules[].onMessage": "nan"},
    **_without_others("tpu.capacity", ONE_KIND),
    **_without_others("run.compileCache", ONE_PLACE),
}
"""What must be set beside a field, so that the field itself is what decides."""

EXAMPLES: Final[Mapping[str, list[Any]]] = {
    "tpu": [
        {"accelerator": "v5e", "topology": "2x2"},
        {"accelerator": "v5e", "topology": "2x2", "slices": 2},
    ],
    "tpu.accelerator": ["tpu-v5-lite-podslice", "v5e", "v6e", "tpu9-podslice"],
    "tpu.topology": ["2x4", "2x2"],
    "tpu.chipsPerHost": [4, 8],
    "tpu.slices": [2, 1],
    "tpu.capacity": [{"nodePool": "missing"}, {"spot": True}],
    "tpu.capacity.reservation": ["mine", "r" * 63],
    "tpu.capacity.provisioningRequest": ["mine", "p" * 63],
    "tpu.capacity.nodePool": ["missing"],
    "run": [{"command": ["python", "other.py"]}],
    "run.image": ["example/train:2", "example/train@sha256:" + "0" * 64],
    "run.command": [["python", "-m", "train"]],
    "run.command[]": ["python3", ""],
    "run.args": [["--steps", "10"], ["--seed=$(TPU_WORKER_ID)"]],
    "run.args[]": ["--steps=1", "", "x" * 4096],
    "run.env": [[{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}]],
    "run.env[]": [{"name": "A", "value": "1"}, {"name": "TPU_WORKER_ID", "value": "7"}],
    "run.env[].name": ["A", "with.dots-and_more", "TPU_NAME"],
    "run.env[].value": ["", "1"],
    "run.env[].valueFrom": [
        {"fieldRef": {"fieldPath": "status.podIP"}},
        {"configMapKeyRef": {"name": "c", "key": "k"}},
    ],
    "run.resources": [{"limits": {"cpu": 4, "memory": "16Gi"}}, {"requests": {"cpu": "500m"}}],
    "run.resources.requests": [{"cpu": "250m"}, {"memory": "1Gi", "cpu": 1}],
    "run.resources.requests{}": ["250m", 1],
    "run.resources.limits": [{"cpu": "4"}, {"memory": "1Gi", "cpu": 8}],
    "run.resources.limits{}": ["4", 8, "0.5"],
    "run.resources.claims[]": [{"name": "example", "request": "one"}],
    "run.resources.claims[].name": ["example"],
    "run.compileCache": [{"uri": "gs://bucket/cache"}, {"hostPath": "/var/cache/x"}],
    "run.compileCache.persistentVolumeClaim": ["cache"],
    "run.compileCache.hostPath": ["/var/cache/tpu", "/"],
    "run.compileCache.uri": ["gs://bucket/cache"],
    "template": [{"metadata": {"labels": {"team": "a"}}}],
    "template.metadata": [{"labels": {"team": "a"}, "annotations": {"example.com/note": "b"}}],
    "template.spec": [{"nodeSelector": {"kubernetes.io/os": "linux"}}],
    "head.spec": [{"containers": [{"name": "driver", "image": "example/driver:1"}]}],
    "head": [{"spec": {"containers": [{"name": "driver", "image": "example/driver:1"}]}}],
    "failurePolicy.rules": [[{"onExitCodes": [3], "action": "FailJob"}]],
    "failurePolicy.rules[]": [{"onCauses": ["Hang"], "action": "Restart"}],
    "scheduling.queueName": ["team-a"],
    "scheduling.priorityClassName": ["operations", "missing"],
    "managedBy": ["tpu-operator.dev/tpu-operator", "kueue.x-k8s.io/multikueue"],
    "activeDeadlineSeconds": [3600],
}
"""Values that a person would write."""

BREAKS: Final[Mapping[str, list[Object]]] = {
    "tpu.accelerator": [
        {"tpu.accelerator": "v9", "tpu.chipsPerHost": UNSET},
        {"tpu.accelerator": "v 9", "tpu.chipsPerHost": 4},
    ],
    "tpu.topology": [
        {"tpu.topology": "banana"},
        *({"tpu.accelerator": a, "tpu.topology": "3x3", "tpu.chipsPerHost": UNSET} for a in ("v4", "v5e")),
        *({"tpu.accelerator": a, "tpu.topology": "3x3", "tpu.chipsPerHost": UNSET} for a in ("v5p", "v6e")),
        {"tpu.accelerator": "tpu7x", "tpu.topology": "3x3", "tpu.chipsPerHost": UNSET},
        {"tpu.accelerator": "v9", "tpu.topology": "256x256x4", "tpu.chipsPerHost": 4},
    ],
    "tpu.chipsPerHost": [
        {"tpu.accelerator": "v5e", "tpu.topology": "2x4", "tpu.chipsPerHost": UNSET},
        {"tpu.accelerator": "v5e", "tpu.topology": "4x4", "tpu.chipsPerHost": 8},
        {"tpu.accelerator": "v9", "tpu.topology": "4x4", "tpu.chipsPerHost": 3},
    ],
    "tpu.capacity": [{"tpu.capacity": {"spot": True, "reservation": "mine"}}],
    "tpu.capacity.reservation": [{"tpu.capacity": {"reservation": "a b"}}],
    "tpu.capacity.provisioningRequest": [{"tpu.capacity": {"provisioningRequest": "My Request"}}],
    "tpu.capacity.nodePool": [{"tpu.capacity.nodePool": "-"}],
    "run.processesPerHost": [
        {"run.processesPerHost": 512, "run.launcher": "jax", "tpu.accelerator": "v5e"},
        {"run.processesPerHost": 2, "run.launcher": "ray"},
    ],
    "run.env[].name": [{"run.env": [{"name": "1A", "value": "1"}]}],
    "run.env[].valueFrom": [
        {"run.env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}
    ],
    "run.resources.requests{}": [{"run.resources.requests{}": "many"}],
    "run.resources.limits{}": [{"run.resources.limits{}": ""}],
    "run.compileCache": [
        {"run.compileCache": {}},
        {"run.compileCache": {"hostPath": "/a", "uri": "gs://b/c"}},
    ],
    "run.compileCache.persistentVolumeClaim": [{"run.compileCache": {"persistentVolumeClaim": "A_B"}}],
    "run.compileCache.hostPath": [{"run.compileCache": {"hostPath": "cache"}}],
    "run.compileCache.uri": [{"run.compileCache": {"uri": "bucket"}}],
    "failurePolicy.rules[]": [{"failurePolicy.rules": [{"action": "Ignore"}]}],
    "scheduling.queueName": [{"scheduling.queueName": "My Queue"}],
    "scheduling.priorityClassName": [{"scheduling.priorityClassName": "-high"}],
    "managedBy": [{"managedBy": "kueue"}, {"managedBy": "example.com/other"}],
}
"""Edits that break a rule in CEL about the field."""


def examples(field: Field, schema: Mapping[str, Field]) -> list[Any]:
    """Ordinary values.

    Raises:
        LookupError: more than a type stands behind the field, and nothing is known that satisfies it.
    """
    known = [*EXAMPLES.get(field.path, ())]
    if known or not (field.kind == "free" or "x-kubernetes-validations" in field.schema):
        return known + [value for value in _by_type(field, schema) if value not in known]
    raise LookupError(f"spec.{field.path}: its type does not say what is valid: add values to EXAMPLES")


def _by_type(field: Field, schema: Mapping[str, Field]) -> list[Any]:
    if field.kind in {"array", "map"}:
        return [several(field, 2, schema)]
    if field.kind == "object":
        return [skeleton(field.path, schema)]
    simple = {
        "enum": field.schema.get("enum", []),
        "boolean": [True, False],
        "integer": [field.schema.get("minimum", 0) + 1],
        "string": ["example"],
    }
    return list(simple.get(field.kind, ()))


def boundaries(field: Field, schema: Mapping[str, Field]) -> Iterator[Any]:
    """The smallest and the largest values that the schema lets pass."""
    limits = field.schema
    match field.kind:
        case "integer":
            yield from (limits[bound] for bound in ("minimum", "maximum") if bound in limits)
        case "string":
            # Names that become labels and host names take letters alone at any length.
            yield from ("a" * limits[bound] for bound in ("minLength", "maxLength") if bound in limits)
        case "array":
            yield from (several(field, n, schema) for n in (limits.get("minItems", 0), _most(field, schema)))
        case "map":
            yield from (several(field, n, schema) for n in (0, limits.get("maxProperties", 64)))
        case "object" | "free":
            if not limits.get("required"):
                yield {}


def _most(field: Field, schema: Mapping[str, Field]) -> int:
    """Items that a list may have."""
    limit = int(field.schema.get("maxItems", 64))
    item = schema[f"{field.path}[]"].schema
    return min(limit, len(item.get("enum", range(limit))))


def several(field: Field, count: int, schema: Mapping[str, Field]) -> Any:
    """A list or map with so many entries, all different."""
    if field.kind == "map":
        value = sample(schema[f"{field.path}{{}}"], schema)
        named = [KEYS.get(f"{field.path}{{}}", KEY), *(f"example.com/{i}" for i in range(count))]
        return dict.fromkeys(named[:count], value)
    item = schema[f"{field.path}[]"]
    if item.kind == "enum":
        return item.schema["enum"][:count]
    if item.kind == "integer":
        return list(range(1, count + 1))
    one = sample(item, schema)
    keys = field.schema.get("x-kubernetes-list-map-keys", ())
    return [one | dict.fromkeys(keys, f"n{i}") if isinstance(one, dict) else one for i in range(count)]


def sample(field: Field, schema: Mapping[str, Field]) -> Any:
    """One ordinary value."""
    return examples(field, schema)[0]


def wrong(field: Field, schema: Mapping[str, Field]) -> Iterator[Any]:
    """Values that the schema itself refuses."""
    yield from _wrong_types(field)
    limits = field.schema
    match field.kind:
        case "enum":
            yield "Bogus"
        case "integer":
            yield from (
                limits[bound] + step for bound, step in (("minimum", -1), ("maximum", 1)) if bound in limits
            )
        case "string" | "quantity":
            yield from (
                "a" * (limits[bound] + step)
                for bound, step in (("minLength", -1), ("maxLength", 1))
                if bound in limits
            )
        case "array":
            yield from _wrong_lists(field, schema)
        case "map":
            if "maxProperties" in limits:
                yield several(field, limits["maxProperties"] + 1, schema)


def _wrong_types(field: Field) -> list[Any]:
    match field.kind:
        case "integer":
            return ["1", 1.5, True]
        case "boolean":
            return ["true", 1]
        case "string" | "enum":
            return [1, ["a"]]
        case "quantity":
            return [True, 1.5, {}]
        case "array":
            return ["a", {}]
    return ["a", []]


def _wrong_lists(field: Field, schema: Mapping[str, Field]) -> Iterator[list[Any]]:
    limits = field.schema
    if limits.get("minItems"):
        yield []
    if "maxItems" in limits and _most(field, schema) == limits["maxItems"]:
        yield several(field, limits["maxItems"] + 1, schema)
    if limits.get("x-kubernetes-list-type") in {"map", "set"}:
        yield several(field, 1, schema) * 2
