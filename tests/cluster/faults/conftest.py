"""Fixtures of the fault tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.faults.lab import Lab
from tests.cluster.faults.scenarios import Oracle

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Future

    from hack.devcluster import Cluster
    from tests.kube import Kube


@pytest.fixture(scope="session")
def lab(control_plane: Cluster, kube: Kube) -> Iterator[Lab]:
    """The lab, with nodes and namespaces of its own."""
    made = Lab(control_plane.kubeconfig)
    yield made
    made.close()


@pytest.fixture(scope="session")
def oracle(lab: Lab) -> Oracle:
    """What scenarios end in."""
    return Oracle(lab)


@pytest.fixture(scope="session")
def begun() -> dict[str, Future[None]]:
    """Cases that have begun, by test."""
    return {}


@pytest.fixture
def side_by_side(
    lab: Lab, oracle: Oracle, request: pytest.FixtureRequest, begun: dict[str, Future[None]]
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], None]:
    """Runs this case of a test, of which all selected cases run side by side, as most of it is waiting.

    Each case is a coroutine that gets the oracle and the test's parameters; each test waits for its own.
    """

    def run(case: Callable[..., Coroutine[Any, Any, None]]) -> None:
        tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
        for item in tests:
            if item.function is request.function and item.nodeid not in begun:
                begun[item.nodeid] = lab.submit(case(oracle, **item.callspec.params))
        begun[request.node.nodeid].result()

    return run
