"""What somebody with rights in one namespace cannot make the operator do (docs/security.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.builders import RUNNING, World, job, terminated
from tests.inference import InferenceWorld, inference
from tpu_operator.core.snapshot import Pod

if TYPE_CHECKING:
    from collections.abc import Iterator

EVIL = "$(touch /tmp/x); `id` && '\"\n{{.}} ${HOME}"
LAUNCHERS = ["torchrun", "ray", "jax", "none"]
SHELLS = {"sh", "bash", "/bin/sh", "/bin/bash"}
OURS = {"name": "train", "uid": "of-another-incarnation", "controller": True}


def strangers(the_world: World, *owners: dict[str, Any]) -> set[str]:
    """The job's pods, as if they were somebody else's; their names."""
    for name, pod in the_world.pods.items():
        wire = msgspec.to_builtins(pod)
        wire["metadata"]["ownerReferences"] = list(owners)
        the_world.pods[name] = msgspec.convert(wire, Pod)
    return set(the_world.pods)


class TestLabelsAndOwners:
    """Labels, names and owner references can be written by anybody."""

    @pytest.mark.parametrize("owners", [(), (OURS,), ({"name": "train", "uid": "x", "controller": False},)])
    @pytest.mark.parametrize("spec", [{}, {"suspend": True}, {"activeDeadlineSeconds": 1}])
    def test_pods_that_are_not_ours_are_never_deleted(
        self, spec: dict[str, Any], owners: tuple[dict[str, Any], ...]
    ) -> None:
        the_world = World(job()).run()
        theirs = strangers(the_world, *owners)
        the_world.patch_spec(**spec)
        for name in theirs:
            the_world.set_pod(name, **terminated(1))
        plans = [the_world.step() for _ in range(4)]
        assert not [delete for plan in plans for delete in plan.deletes if delete.kind == "Pod"]
        assert set(the_world.pods) == theirs

    def test_their_failures_are_not_charged_to_the_job(self) -> None:
        the_world = World(job(failurePolicy={"maxRestarts": 0}))
        the_world.step()
        the_world.all_pods(**RUNNING)
        theirs = strangers(the_world)
        for name in theirs:
            the_world.set_pod(name, **terminated(1))
        the_world.settle()
        assert the_world.job.status.phase != "Failed"
        assert "UserError" not in the_world.job.status.restarts.by_cause


def containers(the_world: World | InferenceWorld) -> Iterator[dict[str, Any]]:
    """Containers of all pods that the next passes make."""
    manifests = [manifest for _ in range(3) for manifest in the_world.step().creates]
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            yield from manifest["spec"]["containers"]
            yield from manifest["spec"].get("initContainers", ())


def commands(container: dict[str, Any]) -> Iterator[list[str]]:
    """All that a kubelet will run for a container."""
    yield [*container.get("command", ()), *container.get("args", ())]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield container.get(probe, {}).get("exec", {}).get("command", [])
    for hook in container.get("lifecycle", {}).values():
        yield hook.get("exec", {}).get("command", [])


class TestCommands:
    """What users give is arguments, and never text that something else reads as a program."""

    @pytest.mark.parametrize("launcher", LAUNCHERS)
    @pytest.mark.parametrize("image", [None, "theirs:1"])
    def test_of_jobs(self, launcher: str, image: str | None) -> None:
        run = {"command": ["python", EVIL], "args": [EVIL], "launcher": launcher, "preflight": True}
        found = [*containers(World(job(run=run | ({"image": image} if image else {}))))]
        assert found
        for command in (each for container in found for each in commands(container)):
            assert command[:1] != [EVIL]
            assert not SHELLS & set(command)
            assert {word for word in command if "touch" in word} <= {EVIL}

    @pytest.mark.parametrize("engine", ["vllm", "sglang"])
    def test_of_inferences(self, engine: str) -> None:
        spec = inference(engine={"type": engine, "image": "x", "args": [EVIL]}, model={"name": EVIL})
        found = [*containers(InferenceWorld(spec))]
        assert found
        for command in (each for container in found for each in commands(container)):
            assert not SHELLS & set(command)
            evil = {word for word in command if "touch" in word}
            assert all(word == EVIL or word.startswith("--") for word in evil)
