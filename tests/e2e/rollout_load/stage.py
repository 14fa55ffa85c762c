"""Where rollouts are played under load: a model behind a gateway, steady traffic, and who watches both."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hack.devcluster.nodes import ctr
from tests.cluster.cli.kubectl import Kubectl
from tests.e2e.kube import ROOT, wait_for
from tests.e2e.rollout_load.ledger import Record
from tests.e2e.rollout_load.load import Load
from tests.e2e.serving.model import Gateway, model, program, wait_serving
from tests.judge import Witness
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.e2e.kube import Kube, Object
    from tests.judge import Bounds

NAME: Final = "qwen"
TARGET: Final = 2
"""Replicas of each role."""
ONE_HOST: Final = {"accelerator": "v5e", "topology": "2x2", "chipsPerHost": 4}
DRAIN: Final = {"routeAwaySeconds": 3, "engineSeconds": 15}
STREAM_TOKEN_SECONDS: Final = 0.2
BEFORE: Final = 50
"""Requests before anything happens, and after the end of it."""
ROLLED_SECONDS: Final = 400.0
RECORDS: Final = ROOT / "dist" / "rollout-load"


def both(count: int) -> dict[str, int]:
    """The same number for both roles."""
    return {"prefill": count, "decode": count}


@dataclass
class Stage:
    """A model of two replicas of each role, with the way to it.

    Attributes:
        cluster: where it is.
        kube: its namespace.
        gateway: what leads to it.
        directory: where logs go.
        marks: what has happened, by second since the epoch.
    """

    cluster: Cluster
    kube: Kube
    gateway: Gateway
    directory: Path
    marks: dict[str, float] = field(default_factory=dict)

    def mark(self, what: str) -> None:
        """Remember when something happened."""
        self.marks[what] = time.time()

    def change(self, **spec: Any) -> None:
        """Edit the spec."""
        patch = json.dumps({"spec": spec})
        self.kube.kubectl("patch", "tpuinference", NAME, "--type=merge", f"--patch={patch}")

    def seed(self, number: int) -> None:
        """Change the template: engines are started with another argument."""
        self.change(engine={"args": [f"--seed={number}"]})
        self.mark(f"template {number}")

    def roll_back(self) -> None:
        """Go back to the revision before, by one command."""
        Kubectl(self.cluster, self.kube.namespace)("rollout", "rollback", NAME)
        self.mark("rollback")

    def status(self) -> Object:
        """Status of the model; empty while it is not about the present spec."""
        found = self.kube.get("tpuinference", NAME)
        status: Object = found.get("status", {})
        return status if status.get("observedGeneration") == found["metadata"]["generation"] else {}

    def rolled(self) -> Object:
        """Status once all replicas are of the newest revision and ready."""

        def probe() -> Object | None:
            status = self.status()
            over = status and status["currentRevision"] == status["updatedRevision"]
            idle = over and status["phase"] == "Serving" and status["rollout"]["state"] == "Idle"
            return status if idle and all(r["ready"] == r["desired"] for r in status["roles"]) else None

        found: Object = wait_for(f"{NAME} has rolled; {self.status()}", probe, ROLLED_SECONDS)
        self.mark("rolled")
        return found

    def gate(self) -> str:
        """What the rollout waits for; empty if for nothing."""
        hold = self.status().get("rollout", {}).get("hold") or {}
        return str(hold.get("gate", ""))

    def reason(self, kind: str) -> str:
        """Reason of a condition; empty if it is not there."""
        found = (each for each in self.status().get("conditions", ()) if each["type"] == kind)
        return next((str(each["reason"]) for each in found), "")

    def pods(self, revision: str) -> list[Object]:
        """Pods of a revision."""
        labels = {names.LABEL_INFERENCE: NAME, names.LABEL_REVISION: revision}
        return self.kube.find("pods", ",".join(f"{key}={value}" for key, value in labels.items()))

    def decoder_apart(self, revision: str) -> Object:
        """A pod that decodes, on a node without the operator and the picker."""
        last = self.cluster.nodes()[-1].name
        pods = (pod for pod in self.pods(revision) if pod["metadata"]["labels"][names.LABEL_ROLE] == "decode")
        return next(pod for pod in pods if pod["spec"]["nodeName"] != last)

    @contextmanager
    def under_load(self, scenario: str, requests: int, bounds: Bounds) -> Iterator[Recording]:
        """Steady traffic before, during and after what happens in the context.

        Args:
            scenario: its name.
            requests: how many there are at least.
            bounds: what is promised meanwhile.
        """
        recording = Recording()
        load = Load(self.cluster, self.gateway.address, self.directory)
        with Witness(self.cluster.kubeconfig, self.kube.namespace, NAME, bounds) as witness:
            load.start()
            try:
                load.wait(BEFORE)
                yield recording
                load.wait(max(requests, len(load.requests()) + BEFORE))
            finally:
                load.stop()
                recording.keep(scenario, load, witness, self.marks)

    def kill_node(self, node: str) -> None:
        """End all that runs on a node, its kubelet first, which could tell of it."""
        self.cluster.signal(node.replace("node-", "kubelet-"), signal.SIGKILL)
        running = self.cluster.run_on_node(
            node, ctr("task", "list", "--quiet"), check=True, capture_output=True, text=True
        )
        for task in running.stdout.split():
            self.cluster.run_on_node(node, ctr("task", "kill", "--signal=SIGKILL", task), check=False)
        self.mark(f"{node} dies")

    def revive_node(self, node: str) -> None:
        """Start its kubelet again."""
        kubelet = node.replace("node-", "kubelet-")
        wait_for("the kubelet has ended", lambda: self.cluster.find(kubelet) is None)
        self.cluster.start_component(kubelet)
        self.mark(f"{node} is back")


@dataclass
class Recording:
    """What comes of a scenario, there at its end."""

    record: Record = field(default_factory=lambda: Record("", (), (), {}))

    def keep(self, scenario: str, load: Load, witness: Witness, marks: dict[str, float]) -> None:
        """Take what there is, and write it to where the report looks for it."""
        sights = tuple(witness.sights)
        self.record = Record(scenario, load.requests(), sights, witness.revisions, witness.addresses, marks)
        self.record.save(RECORDS / f"{scenario.replace(' ', '-')}.json")


@contextmanager
def staged(cluster: Cluster, kube: Kube, directory: Path) -> Iterator[Stage]:
    """A stage, and nothing left of it."""
    spec = model(
        NAME, TARGET, TARGET, tpu=ONE_HOST, token_seconds=STREAM_TOKEN_SECONDS, drain=DRAIN, rollout={}
    )
    kube.apply(program(), spec)
    wait_serving(kube, NAME)
    kube.kubectl("rollout", "status", f"deployment/{NAME}-epp", "--timeout=120s")
    gateway = Gateway(cluster, kube, NAME, directory)
    try:
        asyncio.run(gateway.wait_served())
        yield Stage(cluster, kube, gateway, directory)
    finally:
        gateway.stop()
        kube.kubectl("delete", "tpuinference", NAME, "--wait=false")
        # Nothing is served any more that a drain would be for, neither by engines nor by the picker.
        kube.kubectl("delete", "deployments", "--all")
        kube.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=120s")
