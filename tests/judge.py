"""What a watch of the API server shows of a rollout, and which of its promises that breaks."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from tests.kube import POD, Kube
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.kube import Object

IDENTITY: Final = (names.LABEL_ROLE, names.LABEL_REVISION, names.LABEL_REPLICA)


class Promise(StrEnum):
    """What holds at every instant of a rollout (docs/rollout.md)."""

    BUDGET = "Budget"
    FLOOR = "Floor"
    SERVABLE = "Servable"


@dataclass(frozen=True)
class Broken:
    """A promise that does not hold."""

    promise: Promise
    text: str


@dataclass(frozen=True, order=True)
class Replica:
    """A replica of which a pod is there.

    Attributes:
        role: its role.
        revision: its revision.
        index: among those of its role and revision.
        serving: whether all of its hosts are ready, none is on its way out, and routers may find it.
        kept: whether it has not been told to go.
    """

    role: str
    revision: str
    index: str
    serving: bool = True
    kept: bool = True


@dataclass(frozen=True)
class Bounds:
    """What is promised of a TPUInference.

    Attributes:
        hosts: of each replica.
        most: by role, the replicas that there may be, those included that are on their way out.
        least: by role, the replicas that have to serve; empty where there may be none.
    """

    hosts: int
    most: Mapping[str, int]
    least: Mapping[str, int]


@dataclass(frozen=True)
class Sight:
    """What there was from a moment on.

    Attributes:
        at: when it was seen, in seconds since the epoch.
        replicas: in the order of their names.
        broken: what that breaks.
    """

    at: float
    replicas: tuple[Replica, ...]
    broken: tuple[Broken, ...] = ()


def is_ready(pod: Object) -> bool:
    """Whether a pod is ready and to stay."""
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def replicas(pods: Iterable[Object], hosts: int) -> tuple[Replica, ...]:
    """The replicas that pods belong to.

    Args:
        pods: of one TPUInference.
        hosts: of each replica.
    """
    found: defaultdict[tuple[str, str, str], list[Object]] = defaultdict(list)
    for pod in pods:
        labels = pod["metadata"]["labels"]
        role, revision, index = (labels[key] for key in IDENTITY)
        found[role, revision, index].append(pod)
    return tuple(sorted(Replica(*key, _serves(each, hosts), _kept(each)) for key, each in found.items()))


def _serves(pods: list[Object], hosts: int) -> bool:
    return any(map(_routed, pods)) and sum(map(is_ready, pods)) == hosts


def _kept(pods: list[Object]) -> bool:
    return any(map(_routed, pods)) and not any("deletionTimestamp" in pod["metadata"] for pod in pods)


def _routed(pod: Object) -> bool:
    """Whether it is the pod of a replica that routers may find."""
    return bool(pod["metadata"]["labels"].get(names.LABEL_LLMD_SERVING) == names.SERVING)


def drift(pods: Iterable[Object], least: Mapping[str, int]) -> float:
    """How far the roles of a revision are apart, by the replicas that are to stay: as parts of `least`."""
    kept: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pod in filter(_routed, pods):
        role, revision, _ = (pod["metadata"]["labels"][key] for key in IDENTITY)
        kept[revision][role] += "deletionTimestamp" not in pod["metadata"]
    parts = [[counts[role] / n for role, n in least.items() if n] for counts in kept.values()]
    return max((max(each) - min(each) for each in parts if each), default=0.0)


def judge(found: Iterable[Replica], bounds: Bounds) -> Iterator[Broken]:
    """Promises that do not hold of some replicas."""
    there = list(found)
    for role, most in bounds.most.items():
        names_ = [f"{each.revision}-{each.index}" for each in there if each.role == role]
        if len(names_) > most:
            yield Broken(Promise.BUDGET, f"{role}: more than {most} replicas: {names_}")
    serving: defaultdict[str, list[str]] = defaultdict(list)
    for each in there:
        if each.serving:
            serving[each.revision].append(each.role)
    for role, least in bounds.least.items():
        count = sum(roles.count(role) for roles in serving.values())
        if count < least:
            yield Broken(Promise.FLOOR, f"{role}: fewer than {least} serve: {count}")
    if bounds.least and not any(bounds.least.keys() <= set(roles) for roles in serving.values()):
        yield Broken(Promise.SERVABLE, f"no revision has a ready replica of every role: {dict(serving)}")


class Witness:
    """Watches the pods of a TPUInference at the API server, and judges every state that there is.

    Args:
        kubeconfig: how to reach the cluster.
        namespace: where it is.
        name: its name.
        bounds: what is promised of it.

    Attributes:
        sights: what there was, one for each difference.
        states: how often was looked.
        revisions: of all pods that were seen, by name.
        uids: of the same: more than one where a pod was made again.
        addresses: of the same.
        drift: by how much the parts that roles of one revision have of what has to serve ever differed.
    """

    def __init__(self, kubeconfig: Path, namespace: str, name: str, bounds: Bounds) -> None:
        self._kube, self._bounds = Kube(kubeconfig), bounds
        self._where: dict[str, Any] = {
            "namespace": namespace,
            "label_selector": f"{names.LABEL_INFERENCE}={name}",
        }
        self._pods: dict[str, Object] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._fault: Exception | None = None
        self.sights: list[Sight] = []
        self.states = 0
        self.revisions: dict[str, str] = {}
        self.uids: defaultdict[str, set[str]] = defaultdict(set)
        self.addresses: dict[str, str] = {}
        self.drift = 0.0

    def __enter__(self) -> Self:
        raw = self._kube.resource(POD).get(**self._where).to_dict()
        self._version = raw["metadata"]["resourceVersion"]
        for pod in raw["items"]:
            self._keep(pod)
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()
        assert self._fault is None, f"the watch has ended: {self._fault!r}"
        assert self.states > 1, "nothing was seen"

    @property
    def complaints(self) -> list[str]:
        """All that was broken, in the order in which it was seen."""
        return [each.text for sight in self.sights for each in sight.broken]

    def _watch(self) -> None:
        try:
            while not self._over.is_set():
                self._hear()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test that watches has to fail by it
            self._fault = error

    def _hear(self) -> None:
        """Events of some seconds."""
        events = self._kube.resource(POD).watch(resource_version=self._version, timeout=2, **self._where)
        for event in events:
            pod = event["raw_object"]
            self._version = pod["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self._pods.pop(pod["metadata"]["name"], None)
            else:
                self._keep(pod)
            self._look()

    def _keep(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        self._pods[name] = pod
        self.uids[name].add(pod["metadata"]["uid"])
        self.revisions[name] = pod["metadata"]["labels"][names.LABEL_REVISION]
        if address := pod.get("status", {}).get("podIP"):
            self.addresses[name] = address

    def _look(self) -> None:
        self.states += 1
        self.drift = max(self.drift, drift(self._pods.values(), self._bounds.least))
        found = replicas(self._pods.values(), self._bounds.hosts)
        if not self.sights or self.sights[-1].replicas != found:
            self.sights.append(Sight(time.time(), found, tuple(judge(found, self._bounds))))


class Judge(Witness):
    """A witness that has a test fail by what it has seen."""

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        assert not self.complaints, "\n".join(self.complaints[:20])
