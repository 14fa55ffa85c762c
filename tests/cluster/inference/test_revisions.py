"""Replicas and conditions of one revision at a time, whatever happens meanwhile."""

from __future__ import annotations

import re
import signal
import subprocess
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.cluster.inference.models import HOSTS, image, label
from tests.kube import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from hack.devcluster import Cluster
    from tests.cluster.conftest import Operator
    from tests.cluster.inference.models import Models

Told = dict[str, tuple[str, str]]


def test_pc15_a_replica_that_restarts_as_the_spec_changes_has_pods_of_one_revision(
    models: Models, make_operator: Callable[..., Operator]
) -> None:
    operator = make_operator().start()
    models.create()
    old = models.serves()["currentRevision"]
    models.end_pod(sorted(models.pods(role="decode"))[1])
    models.change(engine=image("2"))
    operator.signal(signal.SIGKILL)
    operator.wait()
    make_operator().start()
    made_from: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)

    def over() -> bool:
        for name, pod in models.pods().items():
            made_from[name.rsplit("-", 1)[0]].add(
                (label(pod, "revision"), pod["spec"]["containers"][0]["image"])
            )
        status = models.status()
        return status["currentRevision"] != old and len(status["revisions"]) == 1

    wait_for(over, "the rollout")
    assert all(len(found) == 1 for found in made_from.values()), made_from
    assert len(made_from) == 4
    assert len(models.pods(revision=models.status()["currentRevision"])) == 2 * HOSTS
    assert models.status()["restarts"] == 1


def test_case_61_starting_is_not_rolling_and_conditions_bear_the_generation(
    models: Models, make_operator: Callable[..., Operator]
) -> None:
    make_operator().start()
    models.create()
    started = told_until_it_serves(models)
    assert {each["Progressing"] for each in started} <= {("True", "Starting"), ("False", "Complete")}
    models.change(engine=image("2"))
    rolled = told_until_it_serves(models)
    assert ("True", "RollingOut") in {each["Progressing"] for each in rolled}
    assert rolled[-1]["Progressing"] == ("False", "Complete")
    assert {each["Available"] for each in rolled} == {("True", "Serving")}
    found = models.get()
    generations = {each["type"]: each["observedGeneration"] for each in found["status"]["conditions"]}
    assert {generations[kind] for kind in ("Available", "Progressing")} == {found["metadata"]["generation"]}


def test_kubectl_says_whether_it_serves_whether_it_rolls_and_what_holds_it(
    models: Models, control_plane: Cluster, make_operator: Callable[..., Operator]
) -> None:
    make_operator().start()
    models.create()
    old = models.serves()["currentRevision"]
    line = columns(control_plane, models)
    assert (line["PHASE"], line["READY"]) == ("Serving", "prefill 1/1, decode 1/1")
    assert (line["REVISION"], line["ROLLOUT"], line["HOLD"]) == (old, "Idle", "")
    models.change(engine=image("2"), rollout={"paused": True})
    models.has_condition("Progressing", "False", "Paused")
    line = columns(control_plane, models)
    assert (line["PHASE"], line["ROLLOUT"], line["HOLD"]) == ("Rolling", "Held", "Pause")


def columns(cluster: Cluster, models: Models) -> dict[str, str]:
    """What kubectl shows of it, by column."""
    where = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={models.namespace}"]
    command = [str(cluster.kubectl), *where, "get", "tpui"]
    head, line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    starts = [found.start() for found in re.finditer(r"\S+", head)]
    ends = [*starts[1:], None]
    return {head[a:b].strip(): line[a:b].strip() for a, b in zip(starts, ends, strict=True)}


def told_until_it_serves(models: Models) -> list[Told]:
    """All that was seen of the conditions until one revision serves."""
    seen: list[Told] = []

    def over() -> bool:
        found = models.get()
        status = found.get("status", {})
        if "conditions" in status:
            seen.append({each["type"]: (each["status"], each["reason"]) for each in status["conditions"]})
        known = status.get("observedGeneration") == found["metadata"]["generation"]
        alone = len(status.get("revisions", ())) == 1
        return known and alone and status["phase"] == "Serving"

    wait_for(over, "one revision to serve")
    return seen
