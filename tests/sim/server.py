"""A simulated API server: what controllers rely on of the real one, and nothing else.

One counter of resource versions, generations, uids, preconditions, graceful deletion, finalizers, consistent
pages of lists, watches with selectors over a bounded history, and server-side apply as far as it is used.
tests/sim/test_contract.py puts the same requests to a real API server.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tests.builders import merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

Object = dict[str, Any]
Key = tuple[str, str]
Labels = dict[str, str]

NAMES = {
    "pods": "Pod",
    "services": "Service",
    "nodes": "Node",
    "resourcequotas": "ResourceQuota",
    "tpujobs": "TPUJob",
    "controllerrevisions": "ControllerRevision",
    "leases": "Lease",
}
SERVED = {*NAMES, "events"}
"""What there is; PodGroups, Kueue and TPUInferences are not."""
FINISHED = {"Succeeded", "Failed"}
LIST_KEYS: Mapping[str, tuple[str, ...]] = {"ports": ("port", "protocol"), "ownerReferences": ("uid",)}
ATOMIC = {"selector"}
"""Maps that are replaced as one."""
SERVERS_OWN = ("namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
"""Metadata that stays as it is, whatever a replacement says."""
STATUS_SEPARATE = {"tpujobs"}
"""Resources whose status only changes through the subresource."""


class RefusalError(Exception):
    """An answer that says no."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class Stored(NamedTuple):
    """An object as it is kept; never changed, only replaced."""

    body: Object
    raw: bytes

    @property
    def meta(self) -> Object:
        meta: Object = self.body["metadata"]
        return meta

    @property
    def labels(self) -> Labels:
        return self.meta.get("labels") or {}

    @property
    def key(self) -> Key:
        return self.meta.get("namespace", ""), self.meta["name"]


class Change(NamedTuple):
    """One step of the server's history.

    Attributes:
        version: its resource version.
        plural: the resource.
        writer: who asked for it.
        old: the object before, None when it is new.
        new: the object after, None when it is gone.
    """

    version: int
    plural: str
    writer: str
    old: Stored | None
    new: Stored | None

    @property
    def key(self) -> Key:
        stored = self.new or self.old
        assert stored is not None
        return stored.key


class Request(NamedTuple):
    """A request as it comes off the wire."""

    writer: str
    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    content_type: str = ""


class Target(NamedTuple):
    """What a path is about."""

    plural: str
    namespace: str
    name: str
    subresource: str


@dataclass(eq=False)
class Watch:
    """An open watch: gets every line that its selector lets through."""

    target: Target
    selector: str
    sink: Callable[[bytes], None]


class _Page(NamedTuple):
    """The rest of a list that is read page by page."""

    items: list[Stored]
    version: int


@dataclass
class Server:
    """The API server's state.

    Attributes:
        clock: the cluster's time.
        page: the most objects on a page; servers may send fewer than asked for.
        quota: pods that a namespace may have.
        listeners: told of every change, in order, before anybody else learns of it.
    """

    clock: Callable[[], datetime]
    page: int = 500
    quota: int | None = None
    listeners: list[Callable[[Change], None]] = field(default_factory=list)
    version: int = 1000
    objects: defaultdict[str, dict[Key, Stored]] = field(default_factory=lambda: defaultdict(dict))
    history: defaultdict[str, list[Change]] = field(default_factory=lambda: defaultdict(list))
    compacted: int = 0
    watches: list[Watch] = field(default_factory=list)
    pages: dict[str, _Page] = field(default_factory=dict)
    tokens: int = 0
    uids: int = 0

    # What actors in the cluster call.

    def find(self, plural: str, key: Key) -> Stored | None:
        """The object, or None."""
        return self.objects[plural].get(key)

    def all(self, plural: str) -> list[Stored]:
        """All objects of a resource."""
        return list(self.objects[plural].values())

    def create(self, plural: str, body: Object, writer: str) -> Stored:
        """Store a new object."""
        meta = body["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        if key in self.objects[plural]:
            raise RefusalError(409, "AlreadyExists", f'{plural} "{key[1]}" already exists')
        if plural == "pods":
            self._admit(key[0], key[1])
            body.setdefault("status", {"phase": "Pending"})
        self.uids += 1
        meta["uid"] = f"00000000-0000-4000-8000-{self.uids:012d}"
        meta["creationTimestamp"] = self._stamp(self.clock())
        if plural in STATUS_SEPARATE:
            meta["generation"] = 1
        return self._commit(plural, writer, None, body)

    def update(
        self, plural: str, key: Key, writer: str, change: Callable[[Object], object], *, uid: str = ""
    ) -> Stored | None:
        """Let `change` edit a copy of an object and store it; None when that object is gone."""
        old = self.find(plural, key)
        if old is None or (uid and old.meta["uid"] != uid):
            return None
        body = msgspec.json.decode(old.raw)
        change(body)
        return self._replace(plural, writer, old, body)

    def delete(
        self,
        plural: str,
        key: Key,
        writer: str,
        *,
        uid: str = "",
        grace: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Delete an object, or mark it as one that shall go."""
        old = self._existing(plural, key)
        if uid and old.meta["uid"] != uid:
            raise RefusalError(409, "Conflict", f"the UID in the precondition is not that of {key[1]}")
        period = self._grace(plural, old, grace)
        finalizers = [*old.meta.get("finalizers", ())]
        extra = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(propagation)
        if plural != "pods" and extra and extra not in finalizers:
            finalizers.append(extra)
        if period or finalizers:
            self._mark(plural, old, writer, period, finalizers)
        else:
            self._commit(plural, writer, old, None)

    def compact(self) -> None:
        """Forget the history."""
        self.history.clear()
        self.compacted = self.version
        self.pages.clear()

    # What comes in over the wire.

    def handle(self, request: Request) -> bytes:
        """Carry a request out.

        Raises:
            RefusalError: it cannot be done.
        """
        if request.path == "/version":
            return b"{}"
        target = parse(request.path)
        if target.plural not in SERVED:
            raise RefusalError(404, "NotFound", "the server could not find the requested resource")
        if request.method == "GET":
            return self._get(target).raw if target.name else self._list(target, request.query)
        body = json.loads(request.body)
        key = (target.namespace, target.name)
        match request.method:
            case "POST":
                body.setdefault("metadata", {})["namespace"] = target.namespace
                return self.create(target.plural, body, request.writer).raw
            case "PATCH":
                patch = self._merge_patch if "merge-patch" in request.content_type else self._apply
                return patch(target, body, request.writer).raw
            case "PUT":
                return self._put(target, body, request.writer).raw
            case "DELETE":
                uid = body.get("preconditions", {}).get("uid", "")
                grace, propagation = (
                    body.get("gracePeriodSeconds"),
                    body.get("propagationPolicy", "Background"),
                )
                self.delete(target.plural, key, request.writer, uid=uid, grace=grace, propagation=propagation)
                return b"{}"
        raise RefusalError(405, "MethodNotAllowed", request.method)

    def watch(self, path: str, query: Mapping[str, str], sink: Callable[[bytes], None]) -> Watch:
        """Open a watch: what has happened since a version, and then what happens."""
        target, since = parse(path), int(query["resourceVersion"])
        if since < self.compacted:
            raise RefusalError(410, "Expired", f"too old resource version: {since}")
        watch = Watch(target, query.get("labelSelector", ""), sink)
        for change in self.history[target.plural]:
            if change.version > since:
                _tell(watch, change)
        self.watches.append(watch)
        return watch

    def unwatch(self, watch: Watch) -> None:
        """Close a watch."""
        if watch in self.watches:
            self.watches.remove(watch)

    def bookmark(self, plural: str) -> bytes:
        """The line that says how far a watch has come."""
        meta = {"resourceVersion": str(self.version)}
        return _line("BOOKMARK", msgspec.json.encode({"kind": NAMES[plural], "metadata": meta}))

    # How.

    def _admit(self, namespace: str, name: str) -> None:
        if self.quota is None:
            return
        pods = [p for p in self.all("pods") if p.key[0] == namespace]
        used = sum(p.body["status"].get("phase") not in FINISHED for p in pods)
        if used >= self.quota:
            raise RefusalError(
                403, "Forbidden", f'pods "{name}" is forbidden: exceeded quota: q, used: {used}'
            )

    def _existing(self, plural: str, key: Key) -> Stored:
        stored = self.find(plural, key)
        if stored is None:
            raise RefusalError(404, "NotFound", f'{plural} "{key[1]}" not found')
        return stored

    def _get(self, target: Target) -> Stored:
        return self._existing(target.plural, (target.namespace, target.name))

    def _list(self, target: Target, query: Mapping[str, str]) -> bytes:
        token = query.get("continue", "")
        if token:
            page = self.pages.get(token)
            if page is None:
                raise RefusalError(410, "Expired", "the continue token is too old")
        else:
            found = sorted(self.objects[target.plural].items())
            selector = query.get("labelSelector", "")
            _, _, name = query.get("fieldSelector", "").partition("metadata.name=")
            items = [s for _, s in found if _selected(s, target, selector) and name in {"", s.key[1]}]
            page = _Page(items, self.version)
        size = min(self.page, int(query.get("limit", "500")))
        meta = {"resourceVersion": str(page.version)}
        if page.items[size:]:
            self.tokens += 1
            meta["continue"] = f"token-{self.tokens}"
            self.pages[meta["continue"]] = _Page(page.items[size:], page.version)
        raw = [msgspec.Raw(stored.raw) for stored in page.items[:size]]
        return msgspec.json.encode({"metadata": meta, "items": raw})

    def _apply(self, target: Target, body: Object, writer: str) -> Stored:
        key = (target.namespace, target.name)
        old = self.find(target.plural, key)
        if old is None:
            if target.subresource:
                raise RefusalError(404, "NotFound", f'{target.plural} "{key[1]}" not found')
            if body["metadata"].get("uid"):
                raise RefusalError(409, "Conflict", "uid mismatch: no existing object was found")
            return self.create(target.plural, _defaulted(body), writer)
        new = msgspec.json.decode(old.raw)
        if target.subresource == "status":
            # The real server does not look at the UID here.
            _check_preconditions(old, body["metadata"] | {"uid": None})
            # All of it is one manager's: what is not named any more goes.
            new["status"] = body["status"]
        else:
            if body["metadata"].get("uid", old.meta["uid"]) != old.meta["uid"]:
                raise RefusalError(422, "Invalid", "metadata.uid: field is immutable")
            _check_preconditions(old, body["metadata"])
            for name in ("uid", "resourceVersion"):
                body["metadata"].pop(name, None)
            new = _merge(new, _defaulted(body))
            _check_ports(new)
        return self._replace(target.plural, writer, old, new)

    def _merge_patch(self, target: Target, body: Object, writer: str) -> Stored:
        old = self._get(target)
        return self._replace(target.plural, writer, old, merged(msgspec.json.decode(old.raw), body))

    def _put(self, target: Target, body: Object, writer: str) -> Stored:
        old = self._get(target)
        _check_preconditions(old, body["metadata"])
        body["metadata"] |= {key: old.meta[key] for key in SERVERS_OWN if key in old.meta}
        if target.plural in STATUS_SEPARATE:
            body["status"] = old.body.get("status")
        return self._replace(target.plural, writer, old, {k: v for k, v in body.items() if v is not None})

    def _replace(self, plural: str, writer: str, old: Stored, body: Object) -> Stored:
        """Store a changed object; one that is as before is left alone, as the real server does."""
        if body == old.body:
            return old
        if plural in STATUS_SEPARATE and body.get("spec") != old.body.get("spec"):
            body["metadata"]["generation"] = old.meta["generation"] + 1
        meta = body["metadata"]
        gone = "deletionTimestamp" in meta and not meta.get("finalizers")
        if gone and not meta.get("deletionGracePeriodSeconds"):
            return self._commit(plural, writer, old, None)
        return self._commit(plural, writer, old, body)

    def _grace(self, plural: str, old: Stored, asked: int | None) -> int:
        """Seconds that a pod gets; only one that may run somewhere gets any."""
        if plural != "pods":
            return 0
        spec, phase = old.body["spec"], old.body["status"].get("phase")
        if not spec.get("nodeName") or phase in FINISHED:
            return 0
        return int(asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30))

    def _mark(self, plural: str, old: Stored, writer: str, period: int, finalizers: list[str]) -> None:
        body = msgspec.json.decode(old.raw)
        meta = body["metadata"]
        if finalizers:
            meta["finalizers"] = finalizers
        if "deletionTimestamp" not in meta or period < meta.get("deletionGracePeriodSeconds", 0):
            meta["deletionTimestamp"] = self._stamp(self.clock() + timedelta(seconds=period))
            meta["deletionGracePeriodSeconds"] = period
        if body != old.body:
            self._commit(plural, writer, old, body)

    def _commit(self, plural: str, writer: str, old: Stored | None, body: Object | None) -> Stored:
        self.version += 1
        new = None
        if body is not None:
            body["metadata"]["resourceVersion"] = str(self.version)
            new = Stored(body, msgspec.json.encode(body))
            self.objects[plural][new.key] = new
        else:
            assert old is not None
            del self.objects[plural][old.key]
        change = Change(self.version, plural, writer, old, new)
        self.history[plural].append(change)
        for listener in self.listeners:
            listener(change)
        for watch in [w for w in self.watches if w.target.plural == plural]:
            _tell(watch, change)
        stored = new or old
        assert stored is not None
        return stored

    @staticmethod
    def _stamp(time: datetime) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(path: str) -> Target:
    """What a path names: /api/v1/… or /apis/GROUP/VERSION/…, then [namespaces/NS/]PLURAL[/NAME[/SUB]]."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource = [*parts, "", ""][:3]
    return Target(plural, namespace, name, subresource)


def _selected(stored: Stored, target: Target, selector: str) -> bool:
    if target.namespace and stored.key[0] != target.namespace:
        return False
    for term in filter(None, selector.split(",")):
        key, _, value = term.partition("=")
        if key.startswith("!"):
            if key[1:] in stored.labels:
                return False
        elif key not in stored.labels or (value and stored.labels[key] != value):
            return False
    return True


def _tell(watch: Watch, change: Change) -> None:
    """Send what the change means to this watch: leaving the selection is a deletion."""
    old, new = change.old, change.new
    before = old is not None and _selected(old, watch.target, watch.selector)
    after = new is not None and _selected(new, watch.target, watch.selector)
    if after and new is not None:
        watch.sink(_line("MODIFIED" if before else "ADDED", new.raw))
    elif before and old is not None:
        last = old.body | {"metadata": old.meta | {"resourceVersion": str(change.version)}}
        watch.sink(_line("DELETED", msgspec.json.encode(last)))


def _line(kind: str, raw: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + raw + b"}\n"


def _check_preconditions(old: Stored, meta: Object) -> None:
    for name in ("uid", "resourceVersion"):
        if meta.get(name) and meta[name] != old.meta[name]:
            raise RefusalError(409, "Conflict", f"{name} is {old.meta[name]}, not {meta[name]}")


def _defaulted(body: Object) -> Object:
    for port in body.get("spec", {}).get("ports", ()):
        port.setdefault("protocol", "TCP")
    return body


def _merge(base: Any, over: Any, field_name: str = "") -> Any:
    """Apply `over` to `base` by the rules of server-side apply for the lists that we use."""
    if isinstance(base, dict) and isinstance(over, dict) and field_name not in ATOMIC:
        return base | {key: _merge(base.get(key), value, key) for key, value in over.items()}
    if isinstance(base, list) and isinstance(over, list) and field_name in LIST_KEYS:
        keys = LIST_KEYS[field_name]
        ours = {tuple(item.get(k) for k in keys): item for item in over}
        kept = [_merge(item, ours.pop(tuple(item.get(k) for k in keys), {})) for item in base]
        return kept + list(ours.values())
    return over


def _check_ports(body: Object) -> None:
    ports: Iterable[Object] = body.get("spec", {}).get("ports", ())
    taken = [port.get("name") for port in ports]
    if len(taken) != len(set(taken)):
        raise RefusalError(422, "Invalid", f"spec.ports: Duplicate value among {taken}")
