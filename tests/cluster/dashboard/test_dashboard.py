"""The dashboard in a real Chromium, before a real API server with the operator beside it.

With SCREENSHOTS=docs/screenshots, the pictures of docs/dashboard.md are made anew.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.accounts import account
from tests.cluster.cli.kubectl import Kubectl
from tests.cluster.dashboard.chromium import chromium
from tests.cluster.inference.models import Models, image
from tests.cluster.operator.jobs import Jobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hack.devcluster import Cluster
    from tests.cluster.dashboard.chromium import Page
    from tests.kube import Kube

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]

EVIL = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
READER = {kind: ["get", "list", "watch"] for kind in ("tpujobs", "tpuinferences", "pods", "events")}


@pytest.fixture
async def address(control_plane: Cluster, kube: Kube, team: str, tmp_path: Path) -> AsyncIterator[str]:
    """The page, served by the command to somebody who may look and nothing else."""
    reader = account(control_plane, kube, team, READER, tmp_path / "reader.yaml")
    process = Kubectl(control_plane, team).start("dashboard", f"--kubeconfig={reader}")
    assert process.stdout is not None
    line = await asyncio.to_thread(process.stdout.readline)
    place, _, address = line.strip().partition(": ")
    assert place == f"Namespace {team}", (line, process.poll())
    yield address
    process.terminate()
    process.communicate()


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with chromium(tmp_path / "profile") as page:
        yield page


def picture(name: str, elsewhere: Path) -> Path:
    """Where a picture goes."""
    folder = Path(os.environ.get("SCREENSHOTS", elsewhere))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"dashboard-{name}.png"


def fail(jobs: Jobs, name: str, message: str) -> None:
    """A job that runs and then ends for good."""
    jobs.create(name, failurePolicy={"maxRestarts": 0, "coalesceSeconds": 0})
    jobs.reaches("Running", name)
    jobs.end_pod(f"{name}-0-2", 1, error=message)


async def test_jobs_and_a_rollout(address: str, page: Page, kube: Kube, team: str, tmp_path: Path) -> None:
    jobs, models = Jobs(kube, team), Models(kube, team)
    await page.goto(address)
    await page.shows("There are no TPUJobs and no TPUInferences here.")
    assert await page.evaluate("location.search") == ""
    await page.evaluate("window.loaded = 'once'")
    for make in (
        lambda: jobs.create("train"),
        lambda: fail(jobs, "diverges", "the loss is not a number"),
        lambda: jobs.create("too-large", tpu={"accelerator": "v5e", "topology": "8x8"}),
        lambda: models.create("qwen"),
    ):
        await asyncio.to_thread(make)
    # All of it comes to the page that is open, without another load.
    for text in ("team-a/train", "MaxRestartsReached", "NoMatchingNodes"):
        await page.shows(text)
    await asyncio.to_thread(models.serves, "qwen")
    await page.shows("Serving")
    assert await page.evaluate("window.loaded") == "once"
    await page.picture(picture("overview", tmp_path))
    await _running(page, address, tmp_path)
    await _pending(page, address, tmp_path)
    await _failed(page, address, tmp_path)
    await _rollout(page, address, models, tmp_path)
    assert page.problems == []
    assert {request.split("/")[2] for request in page.requests} == {address.split("/")[2]}


def _at(address: str, path: str) -> str:
    return address.partition("/?")[0] + path


async def _running(page: Page, address: str, tmp_path: Path) -> None:
    await page.goto(_at(address, "/jobs/team-a/train"))
    await page.shows("nothing is wrong: the job runs on 4 hosts")
    assert await page.evaluate("document.querySelectorAll('.grid .host.good').length") == 4
    assert await page.evaluate("document.querySelectorAll('svg.timeline rect').length") >= 1
    assert "ago" in await page.evaluate("document.querySelector('time').textContent")
    await page.picture(picture("running", tmp_path))


async def _pending(page: Page, address: str, tmp_path: Path) -> None:
    await page.goto(_at(address, "/jobs/team-a/too-large"))
    await page.shows("the job does not run: NoMatchingNodes")
    await page.shows("What to do")
    await page.picture(picture("pending", tmp_path))


async def _failed(page: Page, address: str, tmp_path: Path) -> None:
    await page.goto(_at(address, "/jobs/team-a/diverges"))
    await page.shows("UserError, exit code 1: the loss is not a number - first on host 2 of slice 0")
    await page.shows("MaxRestartsReached")
    await page.picture(picture("failed", tmp_path))


async def _rollout(page: Page, address: str, models: Models, tmp_path: Path) -> None:
    await page.goto(_at(address, "/inferences/team-a/qwen"))
    await page.shows("decode 1/1")
    await asyncio.to_thread(models.change, "qwen", engine=image("v2"))
    # Of the two replicas that the rollout needs first there is a node pool for one.
    await page.shows("it serves, and the rollout does not go on: CapacityInUse")
    await page.until("document.querySelectorAll('.boxes .host.good').length >= 3")
    await page.until("document.querySelectorAll('svg.holds rect').length >= 1")
    assert await page.evaluate("document.querySelectorAll('svg.area').length") == 2
    await page.picture(picture("rollout", tmp_path))


async def test_what_others_write_is_text(address: str, page: Page, kube: Kube, team: str) -> None:
    jobs = Jobs(kube, team)
    await asyncio.to_thread(fail, jobs, "evil", EVIL)
    await asyncio.to_thread(jobs.reaches, "Failed", "evil")
    await page.goto(address)
    await page.shows("team-a/evil")
    await page.goto(_at(address, "/jobs/team-a/evil"))
    await page.shows(EVIL)
    assert await page.evaluate("typeof window.hacked") == "undefined"
    assert await page.evaluate("document.querySelectorAll('img').length") == 0
    # Nor would it run if it came unescaped: the policy forbids it.
    await page.evaluate(
        """document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.hacked=1">')"""
    )
    await page.until("document.querySelector('img').complete")
    assert await page.evaluate("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in problem for problem in page.problems)


async def test_a_job_that_is_deleted_and_a_command_that_ends(
    control_plane: Cluster, page: Page, kube: Kube, team: str
) -> None:
    jobs = Jobs(kube, team)
    await asyncio.to_thread(jobs.create, "train", suspend=True)
    await asyncio.to_thread(jobs.seen, "train")
    process = Kubectl(control_plane, team).start("dashboard")
    try:
        assert process.stdout is not None
        address = (await asyncio.to_thread(process.stdout.readline)).strip().partition(": ")[2]
        await page.goto(address)
        await page.goto(_at(address, "/jobs/team-a/train"))
        await page.shows("the job is suspended")
        await page.until("source.readyState === EventSource.OPEN")
        await asyncio.to_thread(kube.delete, ("tpu-operator.dev/v1alpha1", "TPUJob"), "train", team)
        await page.shows("It is deleted.")
        await page.goto(_at(address, "/"))
        await page.shows("There are no TPUJobs")
    finally:
        process.terminate()
        process.communicate()
    await page.until("!document.getElementById('lost').hidden")
