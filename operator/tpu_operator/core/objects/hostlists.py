"""Lists of hosts too long to be in every pod: they are put into a ConfigMap of their slice.

Every host is told of every other, so that the lists of a slice grow with the square of its hosts: with 1,024
hosts of 4 processes they are 280 KB in each pod and 290 MB in all, written again with every change of a pod.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpu_operator.core.plan import Manifest

LISTS: Final = frozenset(
    {"TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "TORCH_TPU_SLICEBUILDER_ADDRESSES"}
)
MAX_INLINE: Final = 16 * 1024
"""Characters of lists that a pod may carry itself; 64 hosts of 4 processes reach it."""


WORTH_MOVING: Final = 1024


def too_long(pod: Manifest) -> bool:
    """Whether a pod's lists are worth a ConfigMap."""
    return sum(len(variable["value"]) for variable in _lists(pod)) > MAX_INLINE


def refer(pod: Manifest, config_map: str) -> None:
    """Have a pod take its lists from a ConfigMap."""
    for variable in _lists(pod):
        reference = {"name": config_map, "key": _key(variable)}
        del variable["value"]
        variable["valueFrom"] = {"configMapKeyRef": reference}


def host_lists(name: str, pod: Manifest, labels: Mapping[str, str], owner: Mapping[str, Any]) -> Manifest:
    """The ConfigMap that pods like this one refer to; all pods of a slice have the same lists."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": pod["metadata"]["namespace"],
            "labels": dict(labels),
            "ownerReferences": [dict(owner)],
        },
        "immutable": True,
        "data": {_key(variable): variable["value"] for variable in _lists(pod)},
    }


def _lists(pod: Manifest) -> Iterable[Manifest]:
    spec = pod["spec"]
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        for variable in container.get("env", ()):
            if variable["name"] in LISTS and len(variable.get("value") or "") > WORTH_MOVING:
                yield variable


def _key(variable: Manifest) -> str:
    """A name for one value of a variable: containers may differ in it."""
    return f"{variable['name']}.{_hash(variable['value'])}"


@lru_cache(maxsize=64)
def _hash(value: str) -> str:
    return f"{zlib.crc32(value.encode()):08x}"
