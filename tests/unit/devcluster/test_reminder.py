"""Pods that kwok has left alone."""

from __future__ import annotations

from typing import Any

import pytest

from hack.devcluster import fake, reminder


def pod(uid: str, phase: str = "Pending", node: str = "fake-node-0", **meta: Any) -> dict[str, Any]:
    return {"metadata": {"uid": uid} | meta, "spec": {"nodeName": node}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("found", "waits"),
    [
        (pod("a"), True),
        (pod("a", node=""), False),
        (pod("a", "Running"), False),
        (pod("a", annotations={fake.HOLD: "true"}), False),
        (pod("a", "Running", deletionTimestamp="now", deletionGracePeriodSeconds=30), True),
        (pod("a", "Running", deletionTimestamp="now", deletionGracePeriodSeconds=0), False),
    ],
)
def test_kwok_is_waited_for_by_pods_with_a_node_that_start_or_go(
    found: dict[str, Any], *, waits: bool
) -> None:
    assert reminder.waits(found) is waits


def test_it_is_reminded_of_a_pod_that_has_waited_twice_and_again_after_two_looks_more() -> None:
    late, before = reminder.forgotten([pod("a")], set())
    assert (late, before) == ([], {"a"})
    late, before = reminder.forgotten([pod("a"), pod("b")], before)
    assert ([each["metadata"]["uid"] for each in late], before) == (["a"], {"b"})
    late, before = reminder.forgotten([pod("a")], before)
    assert (late, before) == ([], {"a"})


def test_a_look_that_takes_long_is_not_repeated_soon() -> None:
    assert (reminder.pause(0.01), reminder.pause(0.5)) == (5, 25)
