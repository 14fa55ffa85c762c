"""The chart on a real API server, and an operator that works with the rights it grants.

The pods of the release are accepted by the API server and played by kwok; what they would do, a process does
with a token of their service account.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any, Final

from tests.cluster.conftest import ROOT, SYSTEM, Operator

if TYPE_CHECKING:
    from pathlib import Path

    from hack.devcluster import Cluster

CHART: Final = ROOT / "charts" / "tpu-operator"
ACCOUNT: Final = f"system:serviceaccount:{SYSTEM}:{SYSTEM}"
VALUES: Final[dict[str, Any]] = {
    "replicas": 1,
    "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
    "resources": {"requests": {"cpu": "10m"}},
}
"""All nodes pose as TPU hosts."""
ADOPT: Final = ("--take-ownership", "--force-conflicts")
"""CRDs that somebody has applied by hand, as other tests do, become the release's."""

Permission = tuple[str, str]
"""A resource, with its group, and a verb."""


class Release:
    """The release, and the operator that it would run.

    Args:
        cluster: where.
        directory: for files.
    """

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster, self._directory = cluster, directory
        self._operators: list[Operator] = []

    def kubectl(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""
        flags: list[str | Path] = ["--kubeconfig", self._cluster.kubeconfig]
        return _run([self._cluster.kubectl, *flags, *arguments], check=check)

    def helm(self, *arguments: str | Path) -> None:
        """Run helm in the operator's namespace."""
        flags: list[str | Path] = ["--kubeconfig", self._cluster.kubeconfig, "--namespace", SYSTEM]
        _run([self._cluster.helm, *flags, *arguments], check=True)

    def install(self, chart: Path = CHART, **values: Any) -> None:
        """Install or upgrade it, and wait until its pods are there."""
        file = self._directory / "values.json"
        file.write_text(json.dumps(VALUES | values))
        self.helm("upgrade", "--install", SYSTEM, chart, "--values", file, "--wait", "--timeout=120s", *ADOPT)

    def uninstall(self) -> None:
        """Remove it."""
        self.helm("uninstall", SYSTEM, "--wait", "--timeout=120s")

    def can(self, who: str, verb: str, what: str, namespace: str = "") -> bool:
        """Whether somebody may do something, to a resource, `resource/name` or `resource:subresource`."""
        resource, _, subresource = what.partition(":")
        flags = [f"--as={who}", f"--namespace={namespace}" if namespace else "--all-namespaces"]
        flags += [f"--subresource={subresource}"] if subresource else []
        return self.kubectl("auth", "can-i", verb, resource, *flags, check=False).returncode == 0

    def used(self) -> set[Permission]:
        """What its account has asked the API server for, by the audit log."""
        events = map(json.loads, self._cluster.audit_log.read_text().splitlines())
        return {
            (_name(event["objectRef"]), event["verb"])
            for event in events
            if event["user"]["username"] == ACCOUNT and "resource" in event.get("objectRef", {})
        }

    def granted(self) -> set[Permission]:
        """What its roles allow."""
        roles = [("clusterrole", SYSTEM), ("role", f"{SYSTEM}-leader")]
        flags = (f"--namespace={SYSTEM}", "--output=json")
        found = [json.loads(self.kubectl("get", *role, *flags).stdout) for role in roles]
        return {
            (f"{group}/{resource}", verb)
            for role in found
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def start(self, *arguments: str) -> Operator:
        """Start an operator with the rights of the release's service account."""
        token = self.kubectl("create", "token", SYSTEM, f"--namespace={SYSTEM}").stdout.strip()
        config = json.loads(self._cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        number = len(self._operators)
        kubeconfig = self._directory / f"operator-{number}.json"
        kubeconfig.write_text(json.dumps(config))
        self._operators.append(Operator(kubeconfig, self._directory / f"operator-{number}.log", *arguments))
        return self._operators[-1].start()

    def close(self) -> None:
        """End all operators."""
        for operator in self._operators:
            operator.kill()


def _name(reference: dict[str, str]) -> str:
    subresource = f"/{reference['subresource']}" if "subresource" in reference else ""
    return f"{reference.get('apiGroup', '')}/{reference['resource']}{subresource}"


def _run(command: list[str | Path], *, check: bool) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or not done.returncode, f"{command[3:]}: {done.stderr}{done.stdout}"
    return done
