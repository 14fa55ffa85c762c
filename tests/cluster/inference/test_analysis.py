"""What the real Prometheus answers to the operator."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import pytest

from tests import prometheus
from tests.kube import wait_for
from tpu_operator.core.inquiry import Answer, Inquiry
from tpu_operator.engine import prometheus as client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.prometheus import Figures


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
