"""Rollouts as people see to them: `kubectl tpu rollout`, run by the real kubectl."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.accounts import account
from tests.cluster.cli.kubectl import Kubectl
from tests.cluster.inference.models import HELD, ONE_HOST, image, label, role, uids
from tests.judge import is_ready
from tests.kube import POD, wait_for
from tpu_operator.cli.command import Exit
from tpu_operator.core import names

if TYPE_CHECKING:
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.cluster.inference.models import Models
    from tests.kube import Object

pytestmark = pytest.mark.usefixtures("operator")

Counts = dict[tuple[str, str], tuple[int, int]]
"""Replicas by role and revision: those kept, and those that leave."""
CANARY = {"canary": {"steps": [{"percent": 25}]}}
NO_SURGE = {"maxSurge": 0, "maxUnavailable": 1}


@pytest.fixture
def tpu(control_plane: Cluster, namespace: str) -> Kubectl:
    """`kubectl tpu` in the namespace of the test."""
    return Kubectl(control_plane, namespace)


@dataclass
class Stage:
    """A rollout in which nothing becomes ready and nothing goes before the test lets it.

    Attributes:
        models: those of the test.
        newest: name of the revision that is rolled out.
    """

    models: Models
    newest: str

    def hold(self) -> None:
        """Keep what is there from going by itself."""
        for name in self.models.pods():
            self.models.kube.patch(POD, name, self.models.namespace, HELD)

    def counts(self) -> Counts:
        """What the API server has, in replicas of one host."""
        found: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
        for pod in self.models.pods().values():
            found[label(pod, "role"), label(pod, "revision")].append(_leaves(pod))
        return {key: (leave.count(False), leave.count(True)) for key, leave in found.items()}

    def comes_to(self, step: Object) -> None:
        """Wait until there is what a step of a plan says."""
        wanted = {
            (each["role"], each["revision"]): (each["kept"], each["leaving"])
            for each in step["replicas"]
            if each["kept"] or each["leaving"]
        }
        try:
            wait_for(lambda: self.counts() == wanted, f"{wanted}")
        except AssertionError as error:
            raise AssertionError(f"{error}; there is {self.counts()}; {self.models.shown()}") from None

    def let_go(self) -> None:
        """Have all go that is to."""
        going = [name for name, pod in self.models.pods().items() if _leaves(pod)]
        for name in going:
            self.models.kube.delete(POD, name, self.models.namespace, gracePeriodSeconds=0)

    def let_start(self) -> None:
        """Have all become ready at once that is to."""
        new = self.models.pods(revision=self.newest)
        for name, pod in new.items():
            if not is_ready(pod):
                bare: Object = {"metadata": {"annotations": {"devcluster/hold": None}}}
                self.models.kube.patch(POD, name, self.models.namespace, bare)


def _leaves(pod: Object) -> bool:
    meta = pod["metadata"]
    return "deletionTimestamp" in meta or meta["labels"].get(names.LABEL_LLMD_SERVING) == names.NOT_SERVING


def roles(prefill: int, decode: int, **more: Any) -> list[Object]:
    """Two roles with slices of one host."""
    return [role("prefill", prefill, tpu=ONE_HOST, **more), role("decode", decode, tpu=ONE_HOST, **more)]


@pytest.mark.usefixtures("single_hosts")
@pytest.mark.parametrize("rollout", [{}, NO_SURGE, CANARY], ids=["surge", "no surge", "canary"])
def test_a_preview_is_what_then_happens_step_by_step(
    tpu: Kubectl, models: Models, tmp_path: Path, rollout: Object
) -> None:
    models.create(roles=roles(4, 2), rollout=rollout)
    models.serves()
    changed = roles(4, 2, template=HELD)
    plan = planned(tpu, models, tmp_path, roles=changed)
    stage = Stage(models, plan["newest"])
    stage.comes_to(plan["steps"][0])
    stage.hold()
    models.change(roles=changed)
    for step in plan["steps"][1:]:
        if "gone" in step["after"]:
            stage.let_go()
        elif step["after"]:
            stage.let_go()
            stage.let_start()
        if "canary" in step["after"]:
            models.has_condition("Progressing", "False", "Paused")
            wait_for(lambda: "Held by:   Pause" in tpu("status", "qwen"), "the step to be there")
            tpu("rollout", "promote", "qwen")
        stage.comes_to(step)
    stage.let_go()
    stage.let_start()
    assert models.serves()["currentRevision"] == plan["newest"]
    assert len(plan["steps"]) == 9


@pytest.mark.usefixtures("single_hosts")
def test_a_partition_keeps_copies_back_as_its_preview_says(
    tpu: Kubectl, models: Models, tmp_path: Path
) -> None:
    models.create(replicas=2, roles=roles(1, 1), rollout={"partition": 1})
    old = models.serves()["currentRevision"]
    plan = planned(tpu, models, tmp_path, engine=image("2"))
    assert plan["end"]["gate"] == "Partition"
    models.change(engine=image("2"))
    stage = Stage(models, plan["newest"])
    stage.comes_to({"replicas": [each | {"leaving": 0} for each in plan["steps"][-1]["replicas"]]})
    assert stage.counts() == {
        (name, revision): (1, 0) for name in ("prefill", "decode") for revision in (old, plan["newest"])
    }
    wait_for(lambda: "Held by:   Partition" in tpu("status", "qwen"), "the hold")
    assert "lower it" in tpu("rollout", "promote", "qwen", fails=Exit.BAD)
    models.change(rollout={"partition": 0})
    assert models.serves()["currentRevision"] == plan["newest"]


def planned(tpu: Kubectl, models: Models, directory: Path, **spec: Any) -> Object:
    """What `kubectl tpu rollout plan` says of a change of the spec."""
    before = models.get()
    file = directory / "new.yaml"
    file.write_text(yaml.safe_dump(before | {"spec": before["spec"] | spec}))
    found: Object = json.loads(tpu("rollout", "plan", "-f", str(file), "-o", "json"))
    return found


def test_a_canary_is_promoted_and_rolled_back_by_hand(tpu: Kubectl, models: Models, tmp_path: Path) -> None:
    models.create(rollout={"canary": {"steps": [{"percent": 50}]}})
    assert tpu("wait", "qwen", "--for=serving", "--timeout=3m") == "tpuinference/qwen is Serving\n"
    old = models.serves()["currentRevision"]
    before = models.get()["metadata"]["resourceVersion"]
    plan = planned(tpu, models, tmp_path, engine=image("2"))
    assert [step["chips"] for step in plan["steps"]] == [32, 64, 64]
    assert plan["slices"] == [{"slice": "v5e 4x4", "now": 2, "most": 4, "end": 2, "spare": 2}]
    assert models.get()["metadata"]["resourceVersion"] == before
    models.change(engine=image("2"))
    models.has_condition("Progressing", "False", "Paused")
    assert models.status()["updatedRevision"] == plan["newest"]
    shown = tpu("status", "qwen")
    assert f"├─revision {plan['newest']}" in shown
    assert "Held by:   Pause" in shown
    assert "`kubectl tpu rollout promote tpui/qwen`" in tpu("why", "qwen", fails=Exit.BAD)
    assert "1 of 1 steps of its canary are done" in tpu("rollout", "promote", "qwen")
    assert f"of {plan['newest']}" in tpu("wait", "tpui/qwen", "--for=complete", "--timeout=3m")
    assert "nothing to do" in tpu("rollout", "plan", "qwen")
    changes = [one["changes"] for one in json.loads(tpu("rollout", "history", "qwen", "-o", "json"))]
    assert changes == [[], ["engine.image: example/vllm:2 added"]]
    assert f"goes back to revision {old}, number 1" in tpu("rollout", "rollback", "qwen")
    # A way back after the end is a rollout as any other, with its canary.
    models.has_condition("Progressing", "False", "Paused")
    assert "1 of 1 steps" in tpu("rollout", "promote", "qwen", "--full")
    assert re.search(
        rf"^{old} +current +1/1 +1/1 +yes$", tpu("rollout", "status", "qwen", "--watch"), re.MULTILINE
    )
    assert models.serves()["currentRevision"] == old
    assert "Complete" in tpu("events", "tpui/qwen")


def test_a_broken_image_is_undone_by_one_command(tpu: Kubectl, models: Models) -> None:
    models.create(rollout={"progressDeadlineSeconds": 3})
    old = models.serves()["currentRevision"]
    before = uids(models.pods())
    models.change(engine=image("typo"), roles=[role(name, template=HELD) for name in ("prefill", "decode")])
    models.has_condition("Progressing", "False", "ProgressDeadlineExceeded")
    assert "does not progress" in tpu("wait", "qwen", "--for=complete", "--timeout=3m", fails=Exit.BAD)
    new = models.status()["updatedRevision"]
    assert f"goes back to revision {old}, number 1" in tpu("rollout", "rollback", "qwen")
    stage = Stage(models, new)

    def gone() -> bool:
        stage.let_go()
        return not models.pods(revision=new)

    wait_for(gone, "what never became ready to go")
    assert models.serves()["currentRevision"] == old
    assert uids(models.pods()) == before


def test_a_model_is_paused_and_restarted(tpu: Kubectl, models: Models) -> None:
    models.create()
    models.serves()
    before = uids(models.pods())
    assert tpu("rollout", "pause", "qwen").startswith("tpuinference/qwen paused")
    tpu("rollout", "restart", "qwen")
    models.has_condition("Progressing", "False", "Paused")
    assert uids(models.pods()) == before
    assert tpu("rollout", "resume", "qwen").startswith("tpuinference/qwen resumed")
    tpu("wait", "qwen", "--for=complete", "--timeout=3m")
    assert not set(uids(models.pods()).values()) & set(before.values())
    assert "has no rollout under way" in tpu("rollout", "promote", "qwen", fails=Exit.BAD)
    wrong = tpu("wait", "qwen", "--for=running", fails=Exit.USAGE)
    assert "--for=running is nothing that a TPUInference can be" in wrong
    assert tpu.complete("rollout", "status", "--namespace", models.namespace, "") == ["qwen"]


@pytest.mark.usefixtures("single_hosts")
def test_who_may_edit_models_may_promote_and_needs_no_right_to_their_status(
    models: Models, control_plane: Cluster, tmp_path: Path
) -> None:
    models.create(roles=roles(1, 1), rollout=CANARY)
    models.serves()
    models.change(engine=image("2"))
    models.has_condition("Progressing", "False", "Paused")
    for verbs, fails in ((["get"], Exit.REFUSED), (["get", "patch"], Exit.DONE)):
        rights = {"tpuinferences": verbs}
        file = account(control_plane, models.kube, models.namespace, rights, tmp_path / f"may-{verbs[-1]}")
        tpu = Kubectl(control_plane, models.namespace, file)
        said = tpu("rollout", "promote", "qwen", fails=fails)
        assert ("promoted" in said) is (fails == Exit.DONE), said
    models.serves()
