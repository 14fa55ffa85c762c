"""The real Kueue, as a process in the cluster's network, and the objects that its tests need."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

import yaml

from hack.devcluster import binaries, process
from hack.devcluster.api import healthy
from tests.kube import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.kube import Kube, Object

GROUP: Final = "kueue.x-k8s.io"
VERSION: Final = f"{GROUP}/v1beta2"
WORKLOAD: Final = (VERSION, "Workload")
FLAVOR: Final = (VERSION, "ResourceFlavor")
CLUSTER_QUEUE: Final = (VERSION, "ClusterQueue")
LOCAL_QUEUE: Final = (VERSION, "LocalQueue")
PRIORITY: Final = (VERSION, "WorkloadPriorityClass")
CHECK: Final = (VERSION, "AdmissionCheck")
HEALTH_PORT: Final = 8081
WEBHOOK_PORT: Final = 9443
CERTIFICATES: Final = "/etc/kueue/metrics/certs"
IN_OWN_ETC: Final = f"""
mount -t tmpfs tmpfs /etc && mkdir -p {CERTIFICATES} && cp "$1"/tls.* {CERTIFICATES} && shift && exec "$@"
"""
"""Kueue looks for certificates there and nowhere else; so it gets a /etc that nobody else sees."""


class Kueue:
    """Kueue in a cluster.

    Args:
        cluster: the cluster.
        kube: a client of it.
    """

    def __init__(self, cluster: Cluster, kube: Kube) -> None:
        self._cluster, self._kube = cluster, kube
        self._module = binaries.source("kueue", "sigs.k8s.io/kueue") / "config/components"
        self._log = cluster.layout.dir / "kueue.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._hooks: list[Object] = []

    def start(self) -> None:
        """Install it, and wait until it answers."""
        binary = binaries.ensure(["kueue"])["kueue"]
        self._kubectl("apply", "--server-side", "-f", self._module / "crd/bases")
        # A CRD that was made a moment ago has no conditions, which kubectl does not wait for by itself.
        for state in ("jsonpath={.status.conditions}", "condition=Established"):
            self._kubectl("wait", f"--for={state}", "-f", self._module / "crd/bases")
        wait_for(self._discovered, "Kueue's API to be discovered")
        self._process = self._launch(binary)
        wait_for(self._healthy, f"Kueue to be healthy, see {self._log}")
        self._hooks = list(self._webhooks(self._module / "webhook/manifests.yaml"))
        for hook in self._hooks:
            self._kube.create((hook["apiVersion"], hook["kind"]), hook)

    def stop(self) -> None:
        """Remove all of it, unless that was done, so that other tests have a cluster without Kueue."""
        if self._process is None:
            return
        for hook in self._hooks:
            self._kube.delete((hook["apiVersion"], hook["kind"]), hook["metadata"]["name"])
        # Kueue takes its finalizers off, so that it has to be there until its objects are gone.
        self._kubectl("delete", "--wait", "--timeout=60s", "-f", self._module / "crd/bases")
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)
        self._process = None

    def asked_for(self, agent: str) -> set[tuple[str, str]]:
        """What somebody has asked of Kueue's API, by the audit log: resources and verbs."""
        events = map(json.loads, self._cluster.audit_log.read_text().splitlines())
        found = [
            (event["objectRef"], event["verb"])
            for event in events
            if event.get("userAgent", "").startswith(agent)
            and event.get("objectRef", {}).get("apiGroup") == GROUP
        ]
        return {
            (f"{ref['resource']}/{ref['subresource']}" if "subresource" in ref else ref["resource"], verb)
            for ref, verb in found
        }

    def _kubectl(self, *arguments: str | Path, check: bool = True) -> str:
        command = [self._cluster.kubectl, "--kubeconfig", self._cluster.kubeconfig, *arguments]
        return subprocess.run(command, check=check, stdout=subprocess.PIPE, text=True).stdout

    def _discovered(self) -> bool:
        """Whether the API server tells clients of all of its kinds."""
        served = json.loads(self._kubectl("get", "--raw", f"/apis/{VERSION}", check=False) or "{}")
        kinds = [each for each in served.get("resources", ()) if "/" not in each["name"]]
        return len(kinds) == len([*(self._module / "crd/bases").iterdir()])

    def _launch(self, binary: Path) -> subprocess.Popen[bytes]:
        layout = self._cluster.layout
        certificates = layout.dir / "kueue-certificates"
        certificates.mkdir(exist_ok=True)
        for ours, theirs in (("apiserver.crt", "tls.crt"), ("apiserver.key", "tls.key")):
            (certificates / theirs).write_bytes((layout.config / ours).read_bytes())
        config = layout.dir / "kueue.json"
        config.write_text(json.dumps(_configuration(certificates)))
        own_etc = ["unshare", "--mount", "--", "sh", "-c", IN_OWN_ETC, "sh", str(certificates)]
        command = [str(binary), f"--config={config}", "--feature-gates=VisibilityOnDemand=false"]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*process.enter(layout), *own_etc, *command],
                env=os.environ | {"KUBECONFIG": str(self._cluster.kubeconfig)},
                stdout=log,
                stderr=log,
            )

    def _healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"Kueue has ended:\n{self._log.read_text()[-3000:]}"
        return healthy(f"http://{self._cluster.record.server_ip}:{HEALTH_PORT}/readyz")

    def _webhooks(self, path: Path) -> Iterator[Object]:
        """Its webhooks for its own objects and for pods, at the address where its process listens."""
        server = self._cluster.record.server_ip
        authority = base64.b64encode((self._cluster.layout.config / "apiserver.crt").read_bytes()).decode()
        for document in filter(None, yaml.safe_load_all(path.read_text())):
            hooks = [h for h in document["webhooks"] if h["rules"][0]["apiGroups"][0] in {GROUP, ""}]
            for hook in hooks:
                url = f"https://{server}:{WEBHOOK_PORT}{hook['clientConfig']['service']['path']}"
                hook["clientConfig"] = {"url": url, "caBundle": authority}
            yield document | {"metadata": {"name": "kueue"}, "webhooks": hooks}


def _configuration(certificates: Path) -> Object:
    return {
        "apiVersion": f"config.{GROUP}/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f":{HEALTH_PORT}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": WEBHOOK_PORT, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 1000, "burst": 1000},
        "integrations": {
            "frameworks": ["batch/job", "pod"],
            "externalFrameworks": ["TPUJob.v1alpha1.tpu-operator.dev"],
            "labelKeysToCopy": ["tpu-operator.dev/inference"],
        },
    }


class Queue:
    """A LocalQueue with a ClusterQueue and a ResourceFlavor of its own.

    Args:
        kube: the cluster.
        namespace: where the LocalQueue is.
        name: its name.
    """

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube, self.namespace, self.name = kube, namespace, name
        self.unique = f"{namespace}-{name}"
        """Name of what has no namespace."""

    def create(self, chips: int, flavor: Object | None = None, checks: tuple[str, ...] = ()) -> None:
        """Make it, with a quota of chips; higher priorities take it from lower ones."""
        self._kube.create(FLAVOR, {"metadata": {"name": self.unique}, "spec": flavor or {}})
        quota = {"name": self.unique, "resources": [{"name": "google.com/tpu", "nominalQuota": chips}]}
        spec: Object = {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["google.com/tpu"], "flavors": [quota]}],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        if checks:
            spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": check} for check in checks]}
        self._kube.create(CLUSTER_QUEUE, {"metadata": {"name": self.unique}, "spec": spec})
        local = {"metadata": {"name": self.name}, "spec": {"clusterQueue": self.unique}}
        self._kube.create(LOCAL_QUEUE, local, self.namespace)

    def grant(self, chips: int) -> None:
        """Set the quota."""
        groups = (self._kube.get(CLUSTER_QUEUE, self.unique) or {})["spec"]["resourceGroups"]
        groups[0]["flavors"][0]["resources"][0]["nominalQuota"] = chips
        self._kube.patch(CLUSTER_QUEUE, self.unique, "", {"spec": {"resourceGroups": groups}})

    def stop(self, policy: str) -> None:
        """Set the stop policy: `None`, `Hold` or `HoldAndDrain`."""
        self._kube.patch(CLUSTER_QUEUE, self.unique, "", {"spec": {"stopPolicy": policy}})

    def delete(self) -> None:
        """Remove it."""
        self._kube.delete(LOCAL_QUEUE, self.name, self.namespace)
        self._kube.delete(CLUSTER_QUEUE, self.unique)
        self._kube.delete(FLAVOR, self.unique)

    def workload(self, job: str = "train") -> Object:
        """The Workload of a job; empty if there is none."""
        return self._kube.get(WORKLOAD, f"tpujob-{job}", self.namespace) or {}

    def condition(self, kind: str, job: str = "train") -> Object:
        """A condition of a job's Workload; empty if it is not there."""
        found = self.workload(job).get("status", {}).get("conditions", ())
        return next((c for c in found if c["type"] == kind), {})

    def activate(self, active: bool, job: str = "train") -> None:
        """Set a Workload's `spec.active`."""
        self._kube.patch(WORKLOAD, f"tpujob-{job}", self.namespace, {"spec": {"active": active}})


def priority(kube: Kube, name: str, value: int) -> None:
    """A WorkloadPriorityClass."""
    if kube.get(PRIORITY, name) is None:
        kube.create(PRIORITY, {"metadata": {"name": name}, "value": value})
