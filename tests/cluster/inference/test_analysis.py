"""Canaries that the real Prometheus decides on."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from tests import prometheus
from tests.cluster.inference.models import image, judged, role
from tests.kube import wait_for
from tpu_operator.core.inquiry import Answer, Inquiry
from tpu_operator.engine import prometheus as client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hack.devcluster import Cluster
    from tests.cluster.conftest import Operator
    from tests.cluster.inference.models import Models
    from tests.prometheus import Figures

ERRORS = {"name": "errors", "query": 'sum(errors{revision="$(revision)"})', "atMost": 0.01}
SPEED = {
    "name": "speed",
    "query": 'sum(tokens{revision="$(revision)"}) / sum(tokens{revision="$(stable)"})',
    "atLeast": 0.9,
}
CANARY = {
    "canary": {
        "steps": [
            {
                "copies": 1,
                "analysis": {"intervalSeconds": 1, "passes": 2, "queries": [ERRORS, SPEED]},
            }
        ]
    }
}
TWO_COPIES: dict[str, Any] = {
    "replicas": 2,
    "roles": [role("decode", type="prefill-decode")],
    "rollout": CANARY,
}


@pytest.fixture
def engines() -> Iterator[Figures]:
    """What engines say of themselves."""
    with prometheus.figures() as found:
        yield found


@pytest.fixture
def server(engines: Figures, tmp_path: Path) -> Iterator[str]:
    """A Prometheus that scrapes the engines."""
    with prometheus.running(engines.address, tmp_path) as url:
        yield url


@pytest.fixture
def analysing(server: str, make_operator: Callable[..., Operator]) -> Operator:
    """An operator that may ask it."""
    return make_operator(f"--prometheus={server}").start()


def asked(server: str, query: str) -> Answer:
    return asyncio.run(client.ask(Inquiry("round", server, {"query": query}))).by_query["query"]


def test_the_real_prometheus_gives_numbers_and_words(server: str, engines: Figures) -> None:
    engines.set("errors", 0.25, revision="a")
    engines.set("errors", 0.5, revision="b")
    wait_for(lambda: asked(server, 'errors{revision="a"}') == Answer(0.25), "the first scrape")
    assert asked(server, "scalar(sum(errors))") == Answer(0.75)
    assert asked(server, "none") == Answer(problem="no data")
    assert math.isnan(asked(server, "0/0").value or 0)
    words = {
        "errors": "2 numbers where there has to be one",
        "errors[1m]": "the query gives a matrix",
        '"x"': "the query gives a string",
        "sum(": "Prometheus says bad_data: invalid parameter",
    }
    for query, problem in words.items():
        assert problem in asked(server, query).problem


def on_trial(models: Models) -> tuple[str, str]:
    """Begin a rollout, and wait until the canary is there, about which nothing is known yet."""
    models.create(**TWO_COPIES)
    old = models.serves()["currentRevision"]
    models.change(engine=image("2"))

    def undecided() -> dict[str, Any] | None:
        found = models.status()["rollout"].get("analysis", {})
        return models.status() if found.get("verdict") == "Inconclusive" else None

    status = wait_for(undecided, "a round without answers")
    assert status["rollout"]["hold"]["gate"] == "Analysis"
    assert "errors: no data" in status["rollout"]["hold"]["reason"]
    return old, status["updatedRevision"]


@pytest.mark.usefixtures("analysing")
def test_a_canary_goes_on_once_the_real_prometheus_has_good_figures(models: Models, engines: Figures) -> None:
    old, new = on_trial(models)
    for revision, tokens in ((old, 100.0), (new, 95.0)):
        engines.set("tokens", tokens, revision=revision)
        engines.set("errors", 0.0, revision=revision)
    status = models.serves()
    assert status["currentRevision"] == new
    found = status["rollout"]["analysis"]
    assert (found["verdict"], found["passed"]) == ("Pass", 2)
    assert {query["name"]: query["value"] for query in found["queries"]} == {"errors": "0", "speed": "0.95"}


@pytest.mark.usefixtures("analysing")
def test_a_canary_with_bad_figures_is_rolled_back_within_the_budgets(
    models: Models, engines: Figures, control_plane: Cluster
) -> None:
    old, new = on_trial(models)
    with judged(control_plane.kubeconfig, models.namespace, {"decode": 3}, {"decode": 2}):
        engines.set("tokens", 100.0, revision=old)
        engines.set("tokens", 50.0, revision=new)
        models.has_condition("Progressing", "False", "RolledBack")
    status = models.status()
    assert (status["phase"], status["reason"], status["currentRevision"]) == ("Serving", "RolledBack", old)
