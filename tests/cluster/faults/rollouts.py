"""TPUInferences whose rollouts are interrupted, and all that is to be there in the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.cluster.faults.lab import HOSTS, LEASE, TPU, Replica, node, story, wait
from tests.cluster.inference.models import image, role
from tests.gateway import picker
from tests.judge import Bounds, Witness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hack.devcluster import Cluster
    from tests.cluster.faults.lab import Lab
    from tests.cluster.faults.proxy import Object

SIDE_BY_SIDE: Final = 4
"""Rollouts at a time, each in a namespace and on nodes of its own."""
POOLS: Final = 4
"""Node pools of each: one replica of each of two roles, and one more of each."""
FIRST_NODE: Final = 100
"""Nodes of the lab have lower numbers."""
NAME: Final = "qwen"
LABEL: Final = "tpu-operator.dev/"
BUDGETS: Final = {"prefill": 2, "decode": 2}, {"prefill": 1, "decode": 1}
"""Most replicas that there may be of each role, and fewest that have to be ready."""
CHILDREN: Final = {
    "pods": "/api/v1/namespaces/{}/pods",
    "services": "/api/v1/namespaces/{}/services",
    "serviceaccounts": "/api/v1/namespaces/{}/serviceaccounts",
    "controllerrevisions": "/apis/apps/v1/namespaces/{}/controllerrevisions",
    "deployments": "/apis/apps/v1/namespaces/{}/deployments",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "inferencepools": "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools",
    "httproutes": "/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes",
}
INFERENCES: Final = "/apis/tpu-operator.dev/v1alpha1/namespaces/{}/tpuinferences"
TIMES: Final = ("time", "Time", "since", "Since", "nodePool", "observedGeneration", "lastProgress")
"""What differs from run to run, by how its name ends."""


class Site:
    """Where rollouts take place.

    Args:
        lab: the lab.
        cluster: its cluster.
    """

    def __init__(self, lab: Lab, cluster: Cluster) -> None:
        self.lab, self.cluster = lab, cluster
        self._free: asyncio.Queue[str] = asyncio.Queue()
        self._namespaces = [f"rollouts-{index}" for index in range(SIDE_BY_SIDE)]

    async def open(self) -> None:
        """Make nodes and namespaces."""
        picker.install(self.cluster)
        for index, namespace in enumerate(self._namespaces):
            first = FIRST_NODE + index * POOLS * HOSTS
            for number in range(first, first + POOLS * HOSTS):
                made = node(number)
                made["metadata"]["labels"]["cloud.google.com/reservation-name"] = namespace
                await self.lab.api.create("/api/v1/nodes", made)
            await self.lab.add_namespace(namespace)
            self._free.put_nowait(namespace)

    async def close(self) -> None:
        """Give back the namespaces; the nodes are the lab's."""
        for namespace in self._namespaces:
            await self.lab.api.delete(f"/api/v1/namespaces/{namespace}")
        picker.uninstall(self.cluster)

    @asynccontextmanager
    async def rollout(self) -> AsyncIterator[Rollout]:
        """One that serves, in a place of its own that is empty again afterwards."""
        namespace = await self._free.get()
        made = Rollout(self, namespace)
        try:
            yield made
        finally:
            await made.close()
            self._free.put_nowait(namespace)


class Rollout:
    """One TPUInference, and the replicas of the operator that work on it.

    Args:
        site: where.
        namespace: where exactly.
    """

    def __init__(self, site: Site, namespace: str) -> None:
        self._lab, self._api, self.namespace = site.lab, site.lab.api, namespace
        self.witness = Witness(site.cluster.kubeconfig, namespace, NAME, Bounds(HOSTS, *BUDGETS))
        self.replicas: list[Replica] = []

    @property
    def _path(self) -> str:
        return f"{INFERENCES.format(self.namespace)}/{NAME}"

    async def lead(self) -> Replica:
        """Start a replica that leads at once."""
        await self._api.delete(LEASE.format(self.namespace))
        self.replicas.append(Replica(self._lab, self.namespace))
        return await self.replicas[-1].start()

    async def serve(self) -> None:
        """Make it, and wait until it serves and nothing is left to do."""
        tpu = TPU | {"capacity": {"reservation": self.namespace}}
        spec = {
            "model": {"name": "Qwen/Qwen3-32B"},
            "engine": image("1"),
            "drain": {"routeAwaySeconds": 0, "engineSeconds": 0},
            "roles": [role(name, tpu=tpu) for name in BUDGETS[1]],
            "routing": {
                "inferencePool": {},
                "endpointPicker": {},
                "httpRoute": {"parentRefs": [{"name": "gateway"}], "hostnames": ["one.example"]},
            },
        }
        manifest = {
            "apiVersion": "tpu-operator.dev/v1alpha1",
            "kind": "TPUInference",
            "metadata": {"name": NAME},
            "spec": spec,
        }
        await self._api.create(INFERENCES.format(self.namespace), manifest)
        await wait(self.is_done, "it to serve")

    async def change(self) -> None:
        """Ask for another image and port, and another route: pods, pool, picker, Service and route change."""
        route = {"parentRefs": [{"name": "gateway"}], "hostnames": ["two.example"]}
        spec = {"engine": image("2") | {"port": 9000}, "routing": {"httpRoute": route}}
        await self._api.patch(self._path, {"spec": spec})

    async def is_done(self) -> bool:
        """Whether all replicas are of the revision of the spec and ready, and there is nothing to do."""
        self.check()
        found = await self._api.get(self._path)
        status, meta = found.get("status", {}), found["metadata"]
        revisions = status.get("revisions", [])
        return (
            self.replicas[-1].idle
            and status.get("observedGeneration") == meta["generation"]
            and (status.get("phase"), len(revisions)) == ("Serving", 1)
            and status["rollout"]["state"] == "Idle"
        )

    async def ends(self) -> Object:
        """Wait for the end, and that one more look at it changes nothing; all that is there then."""
        await wait(self.is_done, "the end of the rollout")
        found = await self._api.patch(
            self._path, {"metadata": {"annotations": {"look": str(time.time_ns())}}}
        )
        version = int(found["metadata"]["resourceVersion"])
        await wait(lambda: self._saw(version), "another look")
        await wait(self.is_done, "the end after another look")
        return await self.state()

    async def _saw(self, version: int) -> bool:
        return self.replicas[-1].runner._inference_controllers[0].objects.has_seen(version)

    async def state(self) -> Object:
        """All that is of it, without what differs from run to run and from place to place."""
        found = await self._api.get(self._path)
        status = _without_times(found["status"])
        # Whether it was ever held up for a moment.
        kept = [c for c in status["conditions"] if (c["type"], c["status"]) != ("Blocked", "False")]
        status["conditions"] = kept
        children = {kind: await self._children(kind, found["metadata"]["uid"]) for kind in CHILDREN}
        text = json.dumps({"status": status} | children).replace(self.namespace, "NAMESPACE")
        # In each place on other nodes, and so other hashes.
        for revision in status["revisions"]:
            text = text.replace(revision["kvCompat"], "KV-COMPAT")
        for name, revision in children["controllerrevisions"].items():
            text = text.replace(name.removeprefix(f"{NAME}-"), f"REVISION-{revision['revision']}")
        parsed: Object = json.loads(text)
        return parsed

    async def _children(self, kind: str, owner: str) -> Object:
        items = await self._api.items(
            f"{CHILDREN[kind].format(self.namespace)}?labelSelector={LABEL}inference={NAME}"
        )
        return {each["metadata"]["name"]: _looks(kind, each, owner) for each in items if _owner(each)}

    def check(self) -> None:
        """Fail if a replica has ended by itself."""
        for replica in self.replicas:
            replica.check()

    def duplicates(self) -> list[str]:
        """Pods that were made more than once."""
        writes = (call for replica in self.replicas for call in replica.proxy.writes)
        made = Counter(
            call.name for call in writes if (call.verb, call.resource, call.status) == ("create", "pods", 201)
        )
        return [name for name, times in made.items() if times > 1]

    def story(self) -> str:
        """What the replicas wrote, one line each."""
        return story(self.replicas)

    async def close(self) -> None:
        """Stop the replicas, and leave nothing behind."""
        for replica in self.replicas:
            await replica.close()
        await self._api.delete(self._path, propagationPolicy="Background")
        await self._api.delete(CHILDREN["pods"].format(self.namespace), gracePeriodSeconds=0)
        await wait(self._is_empty, f"{self.namespace} to be empty")

    async def _is_empty(self) -> bool:
        selector = f"labelSelector={LABEL}inference"
        found = [
            await self._api.items(f"{path.format(self.namespace)}?{selector}") for path in CHILDREN.values()
        ]
        return not any(found)


def _looks(kind: str, item: Object, owner: str) -> Object:
    """What matters of a child."""
    labels = {key: value for key, value in item["metadata"]["labels"].items() if key.startswith(LABEL)}
    labels.pop(f"{LABEL}slice-id", None)
    if kind != "pods":
        labels.pop(f"{LABEL}revision", None)  # a digest of all of it, which is compared itself
    found: Object = {"ours": _owner(item) == owner, "labels": labels}
    if kind == "pods":
        return found | {"phase": item["status"]["phase"], "going": "deletionTimestamp" in item["metadata"]}
    if kind == "services":
        return found | {key: item["spec"].get(key) for key in ("selector", "ports")}
    return found | {"spec": item.get("spec"), "revision": item.get("revision")}


def _owner(item: Object) -> str:
    return next((str(each["uid"]) for each in item["metadata"].get("ownerReferences", ())), "")


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if not key.endswith(TIMES)}
    return [_without_times(item) for item in value] if isinstance(value, list) else value
