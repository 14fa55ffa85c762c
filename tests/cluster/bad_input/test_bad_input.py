"""Thousands of odd objects at the real API server, with the operator at work on those that it takes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.bad_input.generator import generate, kinds
from tests.cluster.operations.site import Site
from tests.kube import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.cluster.bad_input.generator import Kind
    from tests.cluster.conftest import Operator

    Object = dict[str, Any]

log = logging.getLogger(__name__)

OBJECTS: Final = int(os.environ.get("BAD_OBJECTS", "5000"))
SEED: Final = int(os.environ.get("BAD_SEED", "1"))
BATCH: Final = 250
"""Objects that are there at a time."""
PODS: Final = 400
"""Pods that a quota allows them: larger ones are told so."""
NAMESPACE: Final = "bad-input"
QUOTA: Final = {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(PODS)}}}
PATIENCE: Final = 300.0
PAUSE: Final = 0.5
AT_REST: Final = 20.0
"""Seconds for which the operator is watched when there is nothing to do."""
PASSES: Final = 40
"""Passes for each object that are no hot loop: pods come and get ready one after the other."""
WORKS: Final = {"Running", "Succeeded", "Failed", "Suspended", "Serving", "Stopped"}
OURS: Final = {None, "tpu-operator.dev/tpu-operator"}


@pytest.fixture
async def site(control_plane: Cluster, operator: Operator) -> AsyncIterator[Site]:
    """The cluster, with a namespace for odd objects."""
    made = Site(control_plane.kubeconfig)
    await made.must("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    await made.must("POST", f"/api/v1/namespaces/{NAMESPACE}/resourcequotas", QUOTA)
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    await until(made, account, lambda found: found.get("kind") == "ServiceAccount")
    yield made
    await made.must("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
    await made.close()


async def until(site: Site, path: str, what: Any) -> Object:
    """An answer for which something is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        _, found = await site.request("GET", path)
        if what(found):
            return found
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s: {json.dumps(found)[:3000]}"
        await asyncio.sleep(PAUSE)


def path(kind: Kind) -> str:
    return f"/apis/tpu-operator.dev/v1alpha1/namespaces/{NAMESPACE}/{kind.plural}"


def verdict(item: Object) -> str:
    """What becomes of an object: that it works, or why not; empty if there is no word about it yet."""
    status = item.get("status", {})
    if status.get("observedGeneration") != item["metadata"]["generation"]:
        return ""
    if status.get("phase") in WORKS:
        return "works"
    told = [status.get("message"), status.get("pending", {}).get("message")]
    told += [each.get("message") for each in status.get("conditions", ()) if each["type"] != "Ready"]
    return next((str(each) for each in told if each), "")


def decided(listed: Object) -> bool:
    """Whether there is a word about each of the objects that are ours to decide about."""
    return all(verdict(item) for item in listed["items"] if item["spec"].get("managedBy") in OURS)


async def send(site: Site, kind: Kind, objects: list[Object]) -> Counter[int]:
    """Create objects; how many there are by the server's answer, which says why it refuses one."""
    answers: Counter[int] = Counter()
    few = asyncio.Semaphore(8)

    async def one(body: Object) -> None:
        async with few:
            status, answer = await site.request("POST", path(kind), body, fieldValidation="Strict")
        answers[status] += 1
        assert status == 201 or answer["message"], body

    await asyncio.gather(*(one(body) for body in objects))
    return answers


def figures(operator: Operator) -> Counter[str]:
    """What the operator counts, over all labels but the verb."""

    def page() -> str:
        operator.check()
        status, text = operator.http(operator.metrics_port, "/metrics")
        return text if status == 200 else ""

    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(wait_for(page, "the metrics")):
        for sample in family.samples:
            verb = sample.labels.get("verb", "")
            found[f"{sample.name.removeprefix('tpu_operator_')} {verb}".strip()] += int(sample.value)
    return found


def writes(found: Counter[str]) -> int:
    return sum(found[f"api_requests_total {verb}"] for verb in ("POST", "PUT", "PATCH", "DELETE"))


@pytest.mark.timeout(3600)
async def test_each_object_works_or_says_why_not(
    site: Site, operator: Operator, control_plane: Cluster
) -> None:
    rng = random.Random(SEED)
    answers: Counter[int] = Counter()
    accepted = 0
    for first in range(0, OBJECTS, BATCH):
        for kind in kinds():
            numbers = range(first, min(first + BATCH, OBJECTS), 2)
            answers += await send(site, kind, [generate(kind, number, rng) for number in numbers])
        for kind in kinds():
            listed = await until(site, path(kind), decided)
            accepted += len(listed["items"])
        operator.check()
        if first + BATCH >= OBJECTS:
            await check_rest(site, operator, control_plane.audit_log)
        await clear(site)
    found = figures(operator)
    log.info("%d objects, %d taken: %s; %s", OBJECTS, accepted, dict(answers), dict(found))
    assert answers.total() >= OBJECTS
    assert set(answers) <= {201, 400, 409, 422}, "each is taken, or refused with a reason"
    assert accepted > OBJECTS / 10, "most were refused: the generator is too wild to be of use"
    assert found["reconcile_duration_seconds_count"] < PASSES * accepted
    assert found["listener_errors_total"] == found["metric_errors_total"] == 0
    assert "Traceback" not in operator.log.read_text(), operator.log
    assert operator.ready()


def written_to(audit_log: Path, start: int) -> list[tuple[str, int]]:
    """What was written most often since the log was so long: verb, object and answer, with how often."""
    found: Counter[str] = Counter()
    for line in audit_log.read_bytes()[start:].splitlines():
        event = json.loads(line)
        about, answer = event["objectRef"], event["responseStatus"]
        if event["verb"] in {"create", "update", "patch", "delete"} and about["resource"] != "leases":
            found[f"{event['verb']} {about['resource']}/{about.get('name')}: {answer['code']}"] += 1
    return found.most_common(20)


def size(file: Path) -> int:
    return file.stat().st_size


async def check_rest(site: Site, operator: Operator, audit_log: Path) -> None:
    """With all decided, the operator comes to rest: it says anew what it waits for, and no more.

    What the server refuses is tried again with growing pauses, so that rest takes a while.
    """
    standing = sum([len((await site.must("GET", path(kind)))["items"]) for kind in kinds()])
    passes = "reconcile_duration_seconds_count"
    deadline = time.monotonic() + PATIENCE
    while True:
        before, start = figures(operator), size(audit_log)
        await asyncio.sleep(AT_REST)
        after = figures(operator)
        written, passed = writes(after) - writes(before), after[passes] - before[passes]
        log.info("%d objects, %d writes and %d passes in %.0f s", standing, written, passed, AT_REST)
        often = written_to(audit_log, start)
        if 2 * written <= standing and passed <= 2 * standing:
            return
        told = f"{written} writes, {passed} passes for {standing} objects"
        assert time.monotonic() < deadline, f"no rest: {told}: {often}"


async def clear(site: Site) -> None:
    """Remove all objects, and wait for their pods to go."""
    for kind in kinds():
        await site.must("DELETE", path(kind))
    for where in (f"/api/v1/namespaces/{NAMESPACE}/pods", *(path(kind) for kind in kinds())):
        await until(site, where, lambda listed: not listed["items"])
