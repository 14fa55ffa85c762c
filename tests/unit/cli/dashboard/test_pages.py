"""The pages of jobs and models in each state, as HTML that is whole and without anything of others in it."""

from __future__ import annotations

from datetime import timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import NOW
from tests.inference import InferenceWorld, image
from tests.unit.cli import rolescenes
from tests.unit.cli.scenes import LATER, event, failed, in_use, restarted, running, seen, starting
from tpu_operator.api import TPUInference, TPUJob
from tpu_operator.cli.dashboard.history import MOST, History, revisions
from tpu_operator.cli.dashboard.inferencepage import inference_page
from tpu_operator.cli.dashboard.jobpage import job_page
from tpu_operator.cli.dashboard.overview import overview
from tpu_operator.cli.dashboard.web import document
from tpu_operator.cli.follow import Seen, Served
from tpu_operator.cli.happenings import happening

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.builders import World
    from tpu_operator.cli.dashboard.markup import Markup

EVIL = "<img src=x onerror=alert(1)><script>alert(1)</script>\"'"
VOID = {"meta", "link"}
ELEMENTS = """
html head meta title link script body nav a div p main h1 h2 h3 span section dl dt dd ul
ol li pre table thead tbody tr th td small time b svg rect line text
"""
ATTRIBUTES = """
charset name content rel href src defer lang id class hidden datetime title aria-label
scope role viewbox preserveaspectratio x y x1 x2 y1 y2 width height
"""


class Page(HTMLParser):
    """A page that was read: its text, and that it has only the elements and attributes that it should."""

    def __init__(self, whole: str) -> None:
        super().__init__()
        self.text = ""
        self.classes: list[str] = []
        self.titles: list[str] = []
        self._open: list[str] = []
        self.feed(whole)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS.split()
        assert {name for name, _ in attrs} <= set(ATTRIBUTES.split())
        found = dict(attrs)
        assert tag != "script" or found["src"] == "/static/page.js"
        self.classes.append(found.get("class") or "")
        self.titles.append(found.get("title") or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(state: Markup) -> Page:
    return Page(document("x", state))


def of_job(world: World) -> Page:
    return shown(job_page(seen(world), [], LATER))


@pytest.mark.parametrize("scene", [running, in_use, failed, restarted, starting])
def test_every_state_has_a_page(scene: Callable[[], World]) -> None:
    page = of_job(scene())
    assert "default/train" in page.text
    assert "slice 0" in page.text
    assert any(name.startswith("host ") for name in page.classes)


def test_a_job_that_runs() -> None:
    page = of_job(running())
    assert "nothing is wrong: the job runs on 4 hosts" in page.text
    assert "train-0-1: Running on pool-a-1" in page.titles
    assert "verdict good" in page.classes


def test_a_job_that_waits() -> None:
    page = of_job(in_use())
    assert "the job does not run: CapacityInUse" in page.text
    assert "held are pool-a by team-b/big" in page.text
    assert "What to do" in page.text
    assert "0/4 nodes are available: 4 Insufficient google.com/tpu." in page.text


def test_a_job_that_has_failed() -> None:
    page = of_job(failed())
    assert "MaxRestartsReached" in page.text
    assert "FloatingPointError: the loss is not a number" in page.text
    assert "verdict bad" in page.classes


def test_attempts() -> None:
    page = of_job(restarted())
    assert "attempt 1: Running for" in page.text
    assert "UserError" in page.text


def evil_job() -> Seen:
    world = failed()
    wire = world.job.wire()
    wire["metadata"] |= {"name": EVIL, "namespace": EVIL}
    wire["spec"]["tpu"] |= {"accelerator": EVIL}
    wire["status"]["lastFailure"] |= {"message": EVIL, "pod": EVIL}
    wire["status"] |= {"reason": EVIL, "message": EVIL, "ready": EVIL}
    wire["status"]["slices"][0] |= {"nodePool": EVIL, "ready": EVIL}
    for condition in wire["status"]["conditions"]:
        condition |= {"reason": EVIL, "message": EVIL}
    return Seen(TPUJob.parse(wire), list(world.pods.values()))


def evil_model() -> TPUInference:
    wire = InferenceWorld().run().inference.wire()
    wire["metadata"] |= {"name": EVIL, "namespace": EVIL}
    wire["spec"]["model"]["name"] = EVIL
    status: dict[str, Any] = wire["status"]
    status |= {"reason": EVIL, "message": EVIL, "currentRevision": EVIL, "updatedRevision": EVIL}
    status["rollout"] |= {"hold": {"gate": "Capacity", "reason": EVIL}, "step": EVIL}
    status["pending"] = {"reason": "CapacityInUse", "message": EVIL}
    status["lastFailure"] = {"cause": "UserError", "message": EVIL, "pod": EVIL}
    for each in (*status["revisions"], *status["roles"], *status["groups"]):
        each["name"] = EVIL
    return TPUInference.parse(wire)


def test_nothing_that_others_write_is_anything_but_text() -> None:
    model, job = evil_model(), evil_job()
    history = History()
    history.add(model, NOW)
    events = [happening(event(EVIL, f"Ready: {EVIL}", about=f"TPUJob/{EVIL}"))]
    for state in (
        job_page(job, events, LATER),
        inference_page(Served(model), events, list(history.samples), LATER),
        overview([job.job], [model], EVIL),
    ):
        assert EVIL in shown(state).text
        assert "<script>alert" not in state
        assert "<img" not in state


def rolling() -> tuple[InferenceWorld, History]:
    """A rollout of which the new replicas are not ready yet."""
    world, history = InferenceWorld().run(), History()
    history.add(world.inference, NOW)
    world.patch_spec(engine=image("v2")).settle()
    history.add(world.inference, NOW + timedelta(minutes=1))
    return world, history


def test_a_rollout() -> None:
    world, history = rolling()
    page = shown(inference_page(rolescenes.seen(world), [], list(history.samples), LATER))
    assert "the rollout waits: Readiness" in page.text
    assert "`kubectl tpu rollout rollback tpui/qwen` goes back, if the new revision is wrong" in page.text
    new, old = (revision.name for revision in world.status.revisions)
    assert f"{new} newest" in page.text
    assert f"{old} serves" in page.text
    assert f"prefill-{old}-1: Ready 4/4" in page.titles
    assert "2 ready of 2, 1 of the newest" in page.text
    assert f"{old}: 2 ready since 12:00:00 UTC" in page.text
    assert "Readiness since 12:01:00 UTC" in page.text


def test_history_keeps_what_differs() -> None:
    world, history = rolling()
    for minute in range(2, 10):
        history.add(world.inference, NOW + timedelta(minutes=minute))
    assert [sample.gate for sample in history.samples] == ["", "Readiness"]
    world.run()
    history.add(world.inference, LATER)
    assert len(revisions(list(history.samples))) == 2
    assert history.samples.maxlen == MOST


def test_those_in_trouble_come_first() -> None:
    jobs = [seen(scene()).job for scene in (running, in_use)]
    named = [
        job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": name})})
        for job, name in zip(jobs, ("a-runs", "b-waits"), strict=True)
    ]
    text = shown(overview(named, [InferenceWorld().run().inference], "Namespace default")).text
    assert text.index("b-waits") < text.index("a-runs")
    assert "CapacityInUse" in text
    assert "prefill 2/2, decode 1/1" in text
    assert "There are no TPUJobs" in shown(overview([], [], "Namespace default")).text
