"""The simulated API server answers as the real one does, in all that the operator relies on."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.aio import client, config

from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.sim.wire import SimApi
from tests.sim.world import World
from tpu_operator.engine.client import MERGE, ApiError, ApiServer
from tpu_operator.engine.resources import EVENTS, LEASES, PODS, SERVICES, TPUJOBS, Resource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hack.devcluster import Cluster
    from tests.kube import Kube
    from tests.sim.faults import Crash

Object = dict[str, Any]
Facts = list[Any]
NOBODY = {"nodeSelector": {"nobody": "has-this"}}


class Client:
    """Requests in one namespace, with answers that can be compared between servers.

    Args:
        api: the server.
        namespace: the namespace.
    """

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    def manifest(self, resource: Resource, name: str, **parts: Any) -> Object:
        version = f"{resource.group}/{resource.version}" if resource.group else resource.version
        metadata = {"name": name, "namespace": self.namespace} | parts.pop("metadata", {})
        return {"apiVersion": version, "kind": resource.kind, "metadata": metadata} | parts

    def path(self, resource: Resource, name: str = "") -> str:
        return resource.path(self.namespace, name)

    async def create(self, resource: Resource, name: str, **parts: Any) -> Object:
        return _object(await self.api.create(resource, self.manifest(resource, name, **parts)))

    async def get(self, resource: Resource, name: str) -> Object:
        return _object(await self.api.get(self.path(resource, name)))

    async def put(self, resource: Resource, name: str, change: Callable[[Object], object]) -> Object:
        """Change an object as somebody else would, whatever scheduler and collector change meanwhile."""
        path, query = self.path(resource, name), {"fieldManager": "somebody"}
        while True:
            body = await self.get(resource, name)
            change(body)
            try:
                return _object(await self.api.request("PUT", path, query=query, body=body))
            except ApiError as error:
                if not error.conflict:
                    raise

    async def status(self, job: Object, status: Object, **meta: Any) -> Object:
        """Apply the status of a job on top of the version given."""
        metadata = {key: job["metadata"][key] for key in ("uid", "resourceVersion")} | meta
        manifest = self.manifest(TPUJOBS, job["metadata"]["name"], metadata=metadata, status=status)
        return _object(await self.api.apply(TPUJOBS, manifest, "status"))


async def refusal(request: Awaitable[Any]) -> tuple[int, str]:
    """Status and reason of an answer that says no."""
    with pytest.raises(ApiError) as caught:
        await request
    return caught.value.status, caught.value.reason


def _object(data: bytes) -> Object:
    found: Object = json.loads(data)
    return found


def version(body: Object) -> int:
    return int(body["metadata"]["resourceVersion"])


def job_spec(command: str = "train") -> Object:
    return {"tpu": {"accelerator": "v5e", "topology": "4x4"}, "run": {"command": [command]}}


def pod_spec(**spec: Any) -> Object:
    return {"containers": [{"name": "main", "image": "none"}]} | spec


async def names_and_versions(c: Client) -> Facts:
    job = await c.create(TPUJOBS, "a", spec=job_spec())
    return [
        job["metadata"]["generation"],
        await refusal(c.create(TPUJOBS, "a", spec=job_spec())),
        await refusal(c.get(TPUJOBS, "b")),
        (await c.get(TPUJOBS, "a"))["metadata"]["uid"] == job["metadata"]["uid"],
    ]


async def a_status(c: Client) -> Facts:
    job = await c.create(TPUJOBS, "a", spec=job_spec())
    first = await c.status(job, {"phase": "Pending", "startTime": "2026-11-30T12:00:00Z"})
    same = await c.status(first, first["status"])
    less = await c.status(first, {"phase": "Pending"})
    stale = c.status(first, {"phase": "Running"})
    other = await c.status(less, {"phase": "Running"}, uid="00000000-0000-4000-8000-000000000000")
    return [
        version(first) > version(job),
        version(same) == version(first),
        less["status"],
        [o["metadata"]["generation"] for o in (first, same, less)],
        await refusal(stale),
        other["status"],
        await refusal(c.status(job | {"metadata": job["metadata"] | {"name": "b"}}, {"phase": "Running"})),
    ]


async def annotations_of_pods(c: Client) -> Facts:
    # Nobody else writes to it meanwhile.
    pod = await c.create(PODS, "told", spec=pod_spec(schedulerName="nobody"))

    def told(text: str, uid: str = pod["metadata"]["uid"], name: str = "told") -> Awaitable[bytes]:
        metadata = {"uid": uid, "annotations": {"tpu-operator.dev/maintenance": text}}
        return c.api.apply(PODS, c.manifest(PODS, name, metadata=metadata))

    first = _object(await told("soon"))
    same = _object(await told("soon"))
    over = _object(await told(""))
    wrong = "00000000-0000-4000-8000-000000000000"
    return [
        version(first) > version(pod),
        version(same) == version(first),
        [o["metadata"]["annotations"] for o in (first, over)],
        [o["spec"]["containers"][0]["name"] for o in (first, over)],
        await refusal(told("soon", uid=wrong)),
        await refusal(told("soon", name="gone")),
    ]


async def generations(c: Client) -> Facts:
    await c.create(TPUJOBS, "a", spec=job_spec())
    spec = await c.put(TPUJOBS, "a", lambda body: body["spec"].update(suspend=True))
    labels = await c.put(TPUJOBS, "a", lambda body: body["metadata"].update(labels={"a": "b"}))
    status = await c.put(TPUJOBS, "a", lambda body: body.update(status={"phase": "Running"}))
    return [spec["metadata"]["generation"], labels["metadata"]["generation"], "status" in status]


async def deletions_of_pods(c: Client) -> Facts:
    pod = await c.create(PODS, "waits", spec=pod_spec(**NOBODY))
    wrong = c.api.write("DELETE", c.path(PODS, "waits"), {"preconditions": {"uid": "wrong"}})
    facts: Facts = [await refusal(wrong)]
    await c.api.delete(PODS, c.namespace, "waits", pod["metadata"]["uid"])
    facts.append(await refusal(c.get(PODS, "waits")))
    # A pod that is bound to a node gets its time.
    pod = await c.create(PODS, "bound", spec=pod_spec(nodeName="far-away"))
    await c.api.delete(PODS, c.namespace, "bound", pod["metadata"]["uid"])
    first = await c.get(PODS, "bound")
    await c.api.delete(PODS, c.namespace, "bound", pod["metadata"]["uid"])
    again = await c.get(PODS, "bound")
    await c.api.delete(PODS, c.namespace, "bound", pod["metadata"]["uid"], 0)
    return [
        *facts,
        "deletionTimestamp" in first["metadata"],
        first["metadata"]["deletionGracePeriodSeconds"],
        version(again) == version(first),
        await refusal(c.get(PODS, "bound")),
    ]


async def finalizers(c: Client) -> Facts:
    meta = {"finalizers": ["example.com/pin"]}
    pod = await c.create(PODS, "pinned", spec=pod_spec(**NOBODY), metadata=meta)
    await c.api.delete(PODS, c.namespace, "pinned", pod["metadata"]["uid"])
    held = await c.get(PODS, "pinned")
    await c.put(PODS, "pinned", lambda body: body["metadata"].pop("finalizers"))
    return ["deletionTimestamp" in held["metadata"], await refusal(c.get(PODS, "pinned"))]


async def the_service(c: Client) -> Facts:
    ports = [{"name": "launcher", "port": 8090, "protocol": "TCP"}]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job": "a"}, "ports": ports}
    await c.create(SERVICES, "a", spec=spec)

    def break_it(body: Object) -> None:
        body["spec"]["selector"] = {"app": "mine"}
        body["spec"]["ports"].append({"name": "mine", "port": 9090, "protocol": "TCP"})
        body["spec"]["publishNotReadyAddresses"] = False

    await c.put(SERVICES, "a", break_it)
    manifest = c.manifest(SERVICES, "a", spec=spec)
    mended = _object(await c.api.apply(SERVICES, manifest))["spec"]
    again = _object(await c.api.apply(SERVICES, manifest))
    clash = json.loads(json.dumps(spec))
    clash["ports"][0]["port"] = 9999
    return [
        mended["selector"],
        sorted(port["port"] for port in mended["ports"]),
        mended.get("publishNotReadyAddresses"),
        version(again) == version(await c.get(SERVICES, "a")),
    ]


async def pages(c: Client) -> Facts:
    for name in ("a", "b", "c"):
        await c.create(SERVICES, name, spec={"clusterIP": "None"}, metadata={"labels": {"of": "pages"}})
    query = {"limit": "2", "labelSelector": "of=pages"}
    first = _object(await c.api.get(c.path(SERVICES), **query))
    await c.create(SERVICES, "d", spec={"clusterIP": "None"}, metadata={"labels": {"of": "pages"}})
    rest = _object(await c.api.get(c.path(SERVICES), **query, **{"continue": first["metadata"]["continue"]}))
    whole = _object(await c.api.get(c.path(SERVICES), labelSelector="of"))
    await c.create(SERVICES, "e", spec={"clusterIP": "None"})
    without = _object(await c.api.get(c.path(SERVICES), labelSelector="!of,!from"))
    return [
        [[item["metadata"]["name"] for item in page["items"]] for page in (first, rest, whole, without)],
        first["metadata"]["resourceVersion"] == rest["metadata"]["resourceVersion"],
        rest["metadata"].get("continue", ""),
        version(whole) > version(first),
    ]


async def one_of_a_list(c: Client) -> Facts:
    made = {name: await c.create(SERVICES, name, spec={"clusterIP": "None"}) for name in ("a", "ab")}
    found: Facts = []
    for name in ("a", "ab", "b"):
        page = _object(await c.api.get(c.path(SERVICES), fieldSelector=f"metadata.name={name}"))
        found.append([version(item) == version(made[name]) for item in page["items"]])
    return found


async def a_watch(c: Client) -> Facts:
    empty = _object(await c.api.get(c.path(SERVICES)))
    spec = {"clusterIP": "None"}
    service = await c.create(SERVICES, "a", spec=spec, metadata={"labels": {"of": "watch"}})
    query = {
        "watch": "1",
        "labelSelector": "of",
        "resourceVersion": empty["metadata"]["resourceVersion"],
        "timeoutSeconds": "60",
    }
    events: Facts = []
    async with c.api.stream(c.path(SERVICES), query, 60.0) as lines:
        await c.create(SERVICES, "other", spec=spec)
        changes: list[Callable[[Object], object]] = [
            lambda body: body["spec"].update(publishNotReadyAddresses=True),
            lambda body: body["metadata"].update(labels={}),
            lambda body: body["metadata"].update(labels={"of": "watch"}),
        ]
        versions = [version(service)]
        versions += [version(await c.put(SERVICES, "a", change)) for change in changes]
        await c.api.delete(SERVICES, c.namespace, "a", service["metadata"]["uid"])
        async for line in lines:
            event = _object(line)
            known = version(event["object"]) in versions
            events.append((event["type"], event["object"]["metadata"]["name"], known))
            if len(events) == 5:
                break
    return events


async def leases(c: Client) -> Facts:
    lease = await c.create(LEASES, "a", spec={"holderIdentity": "one"})
    await c.put(LEASES, "a", lambda body: body["spec"].update(holderIdentity="two"))
    stale = c.api.request("PUT", c.path(LEASES, "a"), body=lease)
    return [await refusal(stale), (await c.get(LEASES, "a"))["spec"]["holderIdentity"]]


async def deletions_of_jobs(c: Client) -> Facts:
    await c.create(TPUJOBS, "a", spec=job_spec())
    body = {"propagationPolicy": "Foreground"}
    owner = await c.create(TPUJOBS, "b", spec=job_spec())
    reference = {
        "apiVersion": "tpu-operator.dev/v1alpha1",
        "kind": "TPUJob",
        "name": "b",
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    pinned = {"ownerReferences": [reference], "finalizers": ["example.com/pin"]}
    await c.create(PODS, "child", spec=pod_spec(**NOBODY), metadata=pinned)
    await c.api.write("DELETE", c.path(TPUJOBS, "b"), body)
    going = (await c.get(TPUJOBS, "b"))["metadata"]
    await c.put(PODS, "child", lambda body: body["metadata"].pop("finalizers"))
    await c.api.write("DELETE", c.path(TPUJOBS, "a"), {})
    return [going["finalizers"], "deletionTimestamp" in going, await refusal(c.get(TPUJOBS, "a"))]


async def series_of_events(c: Client) -> Facts:
    about = {
        "apiVersion": "tpu-operator.dev/v1alpha1",
        "kind": "TPUJob",
        "name": "a",
        "namespace": c.namespace,
    }
    reporter = {"reportingController": "tpu-operator.dev/test", "reportingInstance": "test"}
    what = {"type": "Normal", "reason": "Ready", "action": "Reconcile", "note": "Ready", "regarding": about}
    event = await c.create(EVENTS, "a.1", eventTime="2026-11-30T12:00:00.000000Z", **what, **reporter)

    async def again(name: str, count: int) -> Object:
        series = {"count": count, "lastObservedTime": "2026-11-30T12:00:01.000000Z"}
        body = {"series": series}
        return _object(await c.api.write("PATCH", c.path(EVENTS, name), body, content_type=MERGE))

    first, same = await again("a.1", 2), await again("a.1", 2)
    return [
        first["series"],
        version(first) > version(event),
        version(same) == version(first),
        await refusal(again("a.2", 2)),
    ]


SCENARIOS = [
    names_and_versions,
    a_status,
    annotations_of_pods,
    generations,
    deletions_of_pods,
    finalizers,
    the_service,
    pages,
    one_of_a_list,
    a_watch,
    leases,
    series_of_events,
    deletions_of_jobs,
]


class Person:
    """A process of which nothing is known but its requests."""

    name: str = "person"
    label: str = "person"
    dead: bool = False

    def next_request(self) -> Crash:
        return ""

    def kill(self) -> None:
        """Not asked for."""

    def freeze(self, seconds: float) -> None:
        """Not asked for."""


def simulated(scenario: Callable[[Client], Awaitable[Facts]]) -> Facts:
    loop = SimLoop()

    async def main() -> Facts:
        world = World("contract", loop, Trace(loop))
        return await scenario(Client(SimApi(world.network, Person()), "namespace"))

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def real(
    scenario: Callable[[Client], Awaitable[Facts]],
    cluster: Cluster,
    namespace: str,
) -> Facts:
    async def main() -> Facts:
        configuration = client.Configuration()
        await config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
        api = ApiServer(client.ApiClient(configuration))
        try:
            return await scenario(Client(api, namespace))
        finally:
            await api.close()

    try:
        return asyncio.run(main())
    finally:
        gc.collect()  # connections that were left open are the fault of this test, and not of some later one


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_both_servers_answer_alike(
    scenario: Callable[[Client], Awaitable[Facts]],
    control_plane: Cluster,
    kube: Kube,
    namespace: str,
) -> None:
    assert simulated(scenario) == real(scenario, control_plane, namespace)
