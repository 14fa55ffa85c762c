"""An API server on loopback: has what it is given, and notes what is asked of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from tests.unit.cli import rolescenes, scenes
from tpu_operator.engine.resources import CONTROLLER_REVISIONS, EVENTS, INFERENCES, PODS, SCALERS, TPUJOBS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from tests.builders import World
    from tests.inference import InferenceWorld
    from tpu_operator.engine.resources import Resource

Object = dict[str, Any]

SERVED = (TPUJOBS, INFERENCES, PODS, EVENTS, CONTROLLER_REVISIONS, SCALERS)
NAMESPACE = "default"
KUBECONFIG = """
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
clusters: [{{name: here, cluster: {{server: "{address}"}}}}]
users: [{{name: me, user: {{}}}}]
"""


class Served:
    """What the API server has.

    Attributes:
        logs: of pods.
        pages: of launchers, by pod and page.
        writes: requests that would change something: method, path, body.
    """

    def __init__(self) -> None:
        self.logs: dict[str, str] = {}
        self.pages: dict[tuple[str, str], bytes] = {}
        self.writes: list[tuple[str, str, Any]] = []
        self._objects: dict[str, Object] = {}

    def job(self, world: World) -> Served:
        """Have a job, and its pods."""
        return self._put(TPUJOBS, [scenes.seen(world).job.wire()])._put(PODS, _plain(world.pods.values()))

    def inference(self, world: InferenceWorld) -> Served:
        """Have a TPUInference, with its pods and revisions."""
        self._put(INFERENCES, [rolescenes.seen(world).inference.wire()])
        self._put(CONTROLLER_REVISIONS, _plain(world.revisions.values()))
        return self._put(PODS, _plain(world.pods.values()))

    def events(self, *events: Object) -> Served:
        """Have events."""
        return self._put(EVENTS, events)

    def _put(self, resource: Resource, objects: Iterable[Object]) -> Served:
        for one in objects:
            self._objects[resource.path(NAMESPACE, one["metadata"]["name"])] = one
        return self

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer."""
        path = request.path
        if request.method != "GET":
            self.writes.append(
                (request.method, path, await request.json() if request.can_read_body else None)
            )
        if "/proxy/" in path:
            pod, _, page = path.partition("/pods/")[2].partition("/proxy/")
            found = self.pages.get((pod.partition(":")[0], page))
            return web.Response(status=200 if found else 502, body=found or b"no answer\n")
        if path.endswith("/log"):
            return web.Response(text=self.logs[path.split("/")[-2]])
        if path in self._objects:
            return web.json_response(self._objects[path])
        if path.rpartition("/")[2] in {one.plural for one in SERVED}:
            return web.json_response({"items": self._items(request), "metadata": {}})
        return web.json_response({"message": "not found", "reason": "NotFound"}, status=404)

    def _items(self, request: web.Request) -> list[Object]:
        plural = request.path.rpartition("/")[2]
        everywhere = "/namespaces/" not in request.path
        return [
            one
            for path, one in self._objects.items()
            if path.split("/")[-2] == plural
            and (everywhere or path.startswith(request.path))
            and _matches(request.query.get("labelSelector", ""), one["metadata"].get("labels", {}))
            and _matches(request.query.get("fieldSelector", ""), _fields(one))
        ]


def _plain(objects: Iterable[Any]) -> list[Object]:
    return [msgspec.json.decode(msgspec.json.encode(one)) for one in objects]


def _fields(one: Object) -> dict[str, str]:
    about = one.get("regarding", {})
    return {"regarding.kind": about.get("kind", ""), "regarding.name": about.get("name", "")}


def _matches(selector: str, values: dict[str, str]) -> bool:
    pairs = (part.partition("=") for part in selector.split(",") if part)
    return all(values.get(key) == value for key, _, value in pairs)


@asynccontextmanager
async def serving(served: Served, folder: Path) -> AsyncIterator[Path]:
    """Serve it; a kubeconfig with the way there."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", served.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    file = folder / "kubeconfig"
    file.write_text(KUBECONFIG.format(address="http://{}:{}".format(*runner.addresses[0])))
    try:
        yield file
    finally:
        await runner.cleanup()
