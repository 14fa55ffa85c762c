"""Tests that run side by side: most of what they do is to wait for the cluster, or for a pause to end."""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from concurrent.futures import Future

    from tests.cluster.faults.lab import Lab
    from tests.cluster.faults.scenarios import Oracle

    Story = Callable[..., Coroutine[Any, Any, None]]

PATIENCE: Final = 2400
"""Seconds for all of them, on a machine that has other things to do as well."""


def together(story: Story) -> Callable[..., None]:
    """Make a test of a coroutine, whose first parameter is the oracle.

    All such tests of a session begin with the first of them; each one then waits for its own end.
    """

    def test(begun: Begun, request: pytest.FixtureRequest, **_: Any) -> None:
        begun.result(request.node, request.session.items)

    names = ["begun", "request", *list(inspect.signature(story).parameters)[1:]]
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    functools.update_wrapper(test, story)
    test.__dict__ |= {"__signature__": inspect.Signature(parameters), "story": story}
    marked: Callable[..., None] = pytest.mark.timeout(PATIENCE)(test)
    return marked


class Begun:
    """The tests that have begun.

    Args:
        lab: where they run.
        oracle: what they get to know.
    """

    def __init__(self, lab: Lab, oracle: Oracle) -> None:
        self._lab, self._oracle = lab, oracle
        self._futures: dict[str, Future[None]] = {}

    def result(self, item: pytest.Item, selected: Iterable[pytest.Item]) -> None:
        """Wait for a test's end, and raise what it has raised."""
        if item.nodeid not in self._futures:
            self._begin(selected)
        self._futures[item.nodeid].result()

    def _begin(self, selected: Iterable[pytest.Item]) -> None:
        """Begin all of them, the first of each function first, so that long waits are well mixed."""
        seen: Counter[object] = Counter()
        turns: list[tuple[int, pytest.Function]] = []
        for item in selected:
            if isinstance(item, pytest.Function) and hasattr(item.function, "story"):
                turns.append((seen[item.function], item))
                seen[item.function] += 1
        for _, item in sorted(turns, key=lambda turn: turn[0]):
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            self._futures[item.nodeid] = self._lab.submit(item.function.story(self._oracle, **parameters))

    def wait(self) -> None:
        """Wait for the end of all."""
        concurrent.futures.wait(self._futures.values())
