"""Other operators, each with the gang of pods that it is good at, from the same pod template."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import signal
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import yaml

from hack.devcluster import binaries, process
from hack.devcluster.api import healthy
from tests.bench.gangs import NAMESPACE
from tests.bench.subjects import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.bench.gangs import Gang
    from tests.bench.http import Object
    from tests.bench.lab import Lab
    from tests.bench.usage import Mark

HEALTH_PORT: Final = 8081
WEBHOOK_PORT: Final = 9443
HOOKS: Final = "/apis/admissionregistration.k8s.io/v1"
COLLECTIONS: Final = {
    "MutatingWebhookConfiguration": f"{HOOKS}/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": f"{HOOKS}/validatingwebhookconfigurations",
}
BETWEEN: Final = (
    f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
    f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets",
    f"/api/v1/namespaces/{NAMESPACE}/services",
)
"""What peers make between their objects and the pods."""
RESTARTED: Final[Object] = {
    "containerStatuses": [
        {
            "name": "main",
            "image": "example",
            "imageID": "",
            "ready": False,
            "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        }
    ],
}
"""A pod whose container failed and is started again in its place."""


class Peer(Subject):
    """A Go operator as a process in the cluster's network, where the API server reaches its webhooks."""

    crds: ClassVar[str]
    """Directory of its CRDs, in its module."""
    hooks: ClassVar[str] = ""
    """File of its webhooks, in its module; empty where it needs none."""
    label: ClassVar[str] = ""
    """Label of the pods that its webhooks are about, as its own installation has it."""
    collection: ClassVar[str]
    """Where its objects are."""
    arguments: ClassVar[tuple[str, ...]] = ()
    sizes = (16, 256)

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self._process: subprocess.Popen[bytes] | None = None
        self._hooks: list[Object] = []

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        binary = await asyncio.to_thread(binaries.ensure, [self.name])
        module = await asyncio.to_thread(_module, self.name)
        await self.lab.kubectl("apply", "--server-side", "-f", module / self.crds)
        await self.lab.served(self.collection)
        since = self.lab.audit.mark()
        self._process = self._launch(binary[self.name])
        await self.lab.poll(self._healthy, f"{self.name} to be ready", pause=0.1)
        await self.lab.poll(partial(self._watches, since), f"{self.name} to watch", pause=0.2)
        if self.hooks:
            self._hooks = list(self._webhooks(module / self.hooks))
        for hook in self._hooks:
            await self.lab.http.call("POST", COLLECTIONS[hook["kind"]], hook)

    async def stop(self) -> None:
        for hook in self._hooks:
            await self.lab.http.call("DELETE", f"{COLLECTIONS[hook['kind']]}/{self.name}")
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._process.wait)

    async def create(self, gang: Gang) -> None:
        wire = self.manifest(gang) | {"metadata": {"name": gang.name, "namespace": NAMESPACE}}
        await self.lab.http.call("POST", self.collection, wire)

    async def remove(self, gang: Gang) -> None:
        await self.lab.http.call("DELETE", f"{self.collection}/{gang.name}")
        for between in BETWEEN:
            for item in (await self.lab.http.call("GET", between))["items"]:
                path = f"{between}/{item['metadata']['name']}?propagationPolicy=Background"
                await self.lab.http.call("DELETE", path)

    def manifest(self, gang: Gang) -> Object:
        """Its object for a gang, without metadata."""
        raise NotImplementedError

    def _launch(self, binary: Path) -> subprocess.Popen[bytes]:
        layout = self.lab.cluster.layout
        certificates = layout.dir / "webhooks"
        certificates.mkdir(exist_ok=True)
        for ours, theirs in (("apiserver.crt", "tls.crt"), ("apiserver.key", "tls.key")):
            if not (certificates / theirs).exists():
                (certificates / theirs).symlink_to(layout.config / ours)
        config = layout.dir / f"{self.name}.json"
        config.write_text(self.configuration(certificates))
        arguments = [each.format(config=config) for each in self.arguments]
        with self.lab.log(self.name).open("ab") as log:
            return subprocess.Popen(
                [*process.enter(layout), binary, *arguments],
                env=os.environ | {"KUBECONFIG": str(self.lab.cluster.kubeconfig)},
                stdout=log,
                stderr=log,
            )

    def configuration(self, certificates: Path) -> str:
        """Its configuration file."""
        return ""

    async def _healthy(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} has ended:\n{self.lab.log(self.name).read_text()[-2000:]}")
        url = f"http://{self.lab.cluster.record.server_ip}:{HEALTH_PORT}/readyz"
        return await asyncio.to_thread(healthy, url)

    async def _watches(self, since: Mark) -> bool:
        """Whether its controllers have begun; it says that it is healthy before."""
        return f"watch {self.collection.rpartition('/')[2]}" in self.lab.audit.calls(since, self.agent)

    def _webhooks(self, path: Path) -> Iterator[Object]:
        """Its webhooks, at the address where its process listens."""
        server = self.lab.cluster.record.server_ip
        authority = base64.b64encode((self.lab.cluster.layout.config / "apiserver.crt").read_bytes()).decode()
        for document in filter(None, yaml.safe_load_all(path.read_text())):
            document["metadata"] = {"name": self.name}
            for hook in document["webhooks"]:
                service = hook["clientConfig"]["service"]["path"]
                url = f"https://{server}:{WEBHOOK_PORT}{service}"
                hook["clientConfig"] = {"url": url, "caBundle": authority}
                if service.endswith("-pod"):
                    hook["objectSelector"] = {"matchExpressions": [{"key": self.label, "operator": "Exists"}]}
            yield document


class JobSet(Peer):
    """One replicated Job of all hosts, restarted as a whole."""

    name = agent = "jobset"
    crds = "config/components/crd/bases"
    hooks = "config/components/webhook/manifests.yaml"
    label = "jobset.sigs.k8s.io/jobset-name"
    collection = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
    arguments = ("--config={config}", "--kube-api-qps=1000", "--kube-api-burst=1000")

    def configuration(self, certificates: Path) -> str:
        return _component("config.jobset.x-k8s.io/v1alpha1", certificates)

    def manifest(self, gang: Gang) -> Object:
        job = {
            "parallelism": gang.hosts,
            "completions": gang.hosts,
            "backoffLimit": 0,
            "completionMode": "Indexed",
            "template": template(gang),
        }
        return {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "spec": {
                "failurePolicy": {"maxRestarts": 3},
                "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": job}}],
            },
        }


class Lws(Peer):
    """One group of all hosts, made again when a container restarts."""

    name = agent = "lws"
    crds = "config/crd/bases"
    hooks = "config/webhook/manifests.yaml"
    label = "leaderworkerset.sigs.k8s.io/name"
    collection = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{NAMESPACE}/leaderworkersets"
    arguments = ("--config={config}", "--kube-api-qps=1000", "--kube-api-burst=1000")
    failure = RESTARTED

    def configuration(self, certificates: Path) -> str:
        return _component("config.lws.x-k8s.io/v1alpha1", certificates)

    def manifest(self, gang: Gang) -> Object:
        group = {
            "size": gang.hosts,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "workerTemplate": template(gang, restartPolicy="Always"),
        }
        return {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "spec": {"replicas": 1, "leaderWorkerTemplate": group},
        }


class KubeRay(Peer):
    """One worker group of one replica of all hosts, beside a head."""

    name = "kuberay"
    agent = "kuberay-operator"
    crds = "config/crd/bases"
    collection = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters"
    # Without the gate it replaces the one pod that has failed, which is no restart of a gang.
    arguments = (
        "--feature-gates=RayMultiHostIndexing=true",
        "--qps=1000",
        "--burst=1000",
        "--enable-leader-election=false",
        f"--health-probe-bind-address=:{HEALTH_PORT}",
    )
    more_pods = 1

    def manifest(self, gang: Gang) -> Object:
        head = {
            "containers": [{"name": "head", "image": "example"}],
            "tolerations": [{"operator": "Exists"}],
        }
        workers = {
            "groupName": "slice",
            "replicas": 1,
            "minReplicas": 1,
            "maxReplicas": 1,
            "numOfHosts": gang.hosts,
            "rayStartParams": {},
            "template": template(gang),
        }
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "spec": {
                "rayVersion": "2.51.0",
                "headGroupSpec": {"rayStartParams": {}, "template": {"spec": head}},
                "workerGroupSpecs": [workers],
            },
        }


def template(gang: Gang, **spec: Any) -> Object:
    """The operator's first pod as a template: the same content, but for its name."""
    pod = copy.deepcopy(gang.pods[0])
    kept = {key: value for key, value in pod["spec"].items() if key not in {"hostname", "subdomain"}}
    return {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": kept | spec}


def _component(api_version: str, certificates: Path) -> str:
    """A configuration file as JobSet and LWS share it."""
    return json.dumps(
        {
            "apiVersion": api_version,
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f":{HEALTH_PORT}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": WEBHOOK_PORT, "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
        }
    )


def _module(name: str) -> Path:
    """Where the sources of a peer are."""
    modules = {
        "jobset": "sigs.k8s.io/jobset",
        "lws": "sigs.k8s.io/lws",
        "kuberay": "github.com/ray-project/kuberay/ray-operator",
    }
    return binaries.source(name, modules[name])
