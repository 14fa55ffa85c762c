"""kubectl and helm as Python objects: all that the tests know of the cluster goes through them."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "tpu-operator"
OPERATOR = "tpu-operator"
"""Release, namespace and Deployment of the operator."""

Object = dict[str, Any]


class CommandError(AssertionError):
    """A command failed; the message has what it printed."""


def wait_for(what: str, probe: Callable[[], Any], seconds: float = 60) -> Any:
    """Return the first true answer of a probe."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still not after {seconds} s: {what}; last answer: {answer!r}")
        time.sleep(0.2)
    return answer


@dataclass(frozen=True)
class Kube:
    """One cluster, with a namespace that commands work in."""

    kubeconfig: Path
    kubectl_binary: Path
    helm_binary: Path
    namespace: str = "default"

    def kubectl(self, *arguments: str, stdin: Object | None = None) -> str:
        """Output of kubectl."""
        text = None if stdin is None else json.dumps(stdin)
        return self._run([self.kubectl_binary, "--namespace", self.namespace, *arguments], text)

    def helm(self, *arguments: str | Path) -> str:
        """Output of helm, in the operator's namespace."""
        return self._run([self.helm_binary, "--namespace", OPERATOR, *arguments], None)

    @contextlib.contextmanager
    def recorded(self, output: Path, *arguments: str) -> Iterator[None]:
        """Write what kubectl prints to a file, for as long as the context lasts."""
        command: list[str | Path] = [self.kubectl_binary, "--namespace", self.namespace, *arguments]
        with output.open("wb") as file, subprocess.Popen(command, env=self._env, stdout=file) as process:
            yield
            process.terminate()

    @property
    def _env(self) -> dict[str, str]:
        return os.environ | {"KUBECONFIG": str(self.kubeconfig)}

    def _run(self, command: Sequence[str | Path], stdin: str | None) -> str:
        done = subprocess.run(
            command, input=stdin, env=self._env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CommandError(f"{' '.join(map(str, command[3:]))}: {done.stderr}{done.stdout}")
        return done.stdout

    def get(self, kind: str, name: str) -> Object:
        """One object."""
        found: Object = json.loads(self.kubectl("get", kind, name, "--output=json"))
        return found

    def find(self, kind: str, selector: str = "") -> list[Object]:
        """All objects of a kind, by name."""
        answer = self.kubectl("get", kind, f"--selector={selector}", "--output=json")
        found: list[Object] = json.loads(answer)["items"]
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def apply(self, *objects: Object) -> None:
        """Apply objects."""
        self.kubectl(
            "apply", "--filename=-", stdin={"apiVersion": "v1", "kind": "List", "items": list(objects)}
        )

    def pods(self, job: str) -> list[Object]:
        """Pods of a job, by host."""
        return self.find("pods", f"tpu-operator.dev/job={job}")

    def status(self, job: str) -> Object:
        """Status of a job; empty before there is one."""
        status: Object = self.get("tpujob", job).get("status", {})
        return status

    def wait_phase(self, job: str, *phases: str, seconds: float = 120) -> Object:
        """Status of a job as soon as it is in one of some phases."""

        def probe() -> Object | None:
            status = self.status(job)
            return status if status.get("phase") in phases else None

        status: Object = wait_for(f"{job} is {' or '.join(phases)}", probe, seconds)
        return status

    def finish(self, job: str, seconds: float = 120) -> Object:
        """Status of a job at its end."""
        return self.wait_phase(job, "Succeeded", "Failed", seconds=seconds)

    def logs(self, pod: str) -> str:
        """What the main container printed."""
        return self.kubectl("logs", pod, "--container=main")


def job(name: str, command: Sequence[str], **spec: Any) -> Object:
    """A job on one 4x4 slice: four hosts with four chips each. `run` adds to the part of that name."""
    run = {"launcher": "none", "command": list(command)} | spec.pop("run", {})
    return {
        "apiVersion": "tpu-operator.dev/v1alpha1",
        "kind": "TPUJob",
        "metadata": {"name": name},
        "spec": {"tpu": {"accelerator": "v5e", "topology": "4x4"}, "run": run} | spec,
    }


def python(name: str, script: str, **spec: Any) -> Object:
    """A job that runs a Python script on each host."""
    return job(name, ["python3", "-c", script], **spec)
