"""What nodes say of coming maintenance."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.builders import NOW, decode_pod, node, stamp
from tpu_operator.api import Cause, Failure
from tpu_operator.core.notices import HORIZON, Notice, attributed, notice_of, remembered, until_notice

SOON = NOW + timedelta(hours=2)
SCHEDULED = "cloud.google.com/scheduled-maintenance-time"
ACTIVE = "cloud.google.com/active-node-maintenance"
END = "node.gke.io/machine-termination-datetime"
EPOCH = str(int(SOON.timestamp()))


def taint(name: str) -> dict[str, Any]:
    return {"taints": [{"key": f"cloud.google.com/{name}", "effect": "NoSchedule"}]}


def found(**more: Any) -> Notice | None:
    return notice_of(node("n", "pool", **more), NOW)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"labels": {SCHEDULED: EPOCH}}, "maintenance of node n begins at 2026-11-30T14:00:00Z"),
        ({"labels": {ACTIVE: "ONGOING"}}, "maintenance of node n is under way"),
        ({"labels": {ACTIVE: "ONGOING", SCHEDULED: EPOCH}}, "maintenance of node n is under way"),
        (taint("impending-node-termination"), "maintenance of node n is under way"),
        (taint("maintenance-window-started"), "maintenance of node n may begin at any time"),
        ({"annotations": {END: stamp(NOW + timedelta(hours=1))}}, "node n ends at 2026-11-30T13:00:00Z"),
        ({"annotations": {END: "2026-11-30T12:30:00"}}, "node n ends at 2026-11-30T12:30:00Z"),
    ],
    ids=str,
)
def test_notices(more: dict[str, Any], text: str) -> None:
    notice = found(**more)
    assert notice is not None
    assert (notice.text, notice.active) == (text, "under way" in text)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"labels": {SCHEDULED: ""}},
        {"labels": {SCHEDULED: "soon"}},
        {"labels": {SCHEDULED: "0"}},
        {"labels": {SCHEDULED: "9" * 12}},
        {"labels": {SCHEDULED: "9" * 40}},
        {"labels": {ACTIVE: "DONE"}},
        taint("gke-queued"),
        {"annotations": {END: "some time"}},
        {"annotations": {END: stamp(NOW + timedelta(seconds=HORIZON + 1))}},
    ],
    ids=str,
)
def test_no_notices(more: dict[str, Any]) -> None:
    assert found(**more) is None


def test_the_end_of_a_machine_is_announced_in_time() -> None:
    end = NOW + timedelta(days=7)
    machine = node("n", "pool", annotations={END: stamp(end)})
    assert until_notice(machine, NOW, HORIZON) == 7 * 24 * 3600 - HORIZON
    assert until_notice(machine, end - timedelta(seconds=HORIZON), HORIZON) is None
    assert until_notice(node("n", "pool"), NOW, HORIZON) is None


@pytest.mark.parametrize("text", ["", "later", "{}", '{"start": 5}'])
def test_what_somebody_else_wrote_into_the_annotation_is_no_notice(text: str) -> None:
    annotations = {"tpu-operator.dev/maintenance": text}
    assert (
        remembered(decode_pod({"metadata": {"name": "p", "labels": {}, "annotations": annotations}})) is None
    )


def test_a_pod_remembers_what_its_node_said() -> None:
    text = json.dumps({"start": stamp(SOON), "checkpoint": stamp(NOW)})
    annotations = {"tpu-operator.dev/maintenance": text}
    wire = {"metadata": {"name": "p", "labels": {}, "annotations": annotations}, "spec": {"nodeName": "n"}}
    notice = remembered(decode_pod(wire))
    assert notice is not None
    assert (notice.start, notice.active) == (SOON, False)
    assert notice.text == "maintenance of node n was announced from 2026-11-30T14:00:00Z"


ONGOING = Notice(None, True, "maintenance of node n is under way")
DUE = Notice(NOW, False, "maintenance of node n begins at 2026-11-30T12:00:00Z")
COMING = Notice(SOON, False, "maintenance of node n begins at 2026-11-30T14:00:00Z")


@pytest.mark.parametrize(
    ("cause", "notice", "put_down"),
    [
        (Cause.USER_ERROR, ONGOING, True),
        (Cause.EVICTED, ONGOING, True),
        (Cause.POD_DELETED, ONGOING, True),
        (Cause.NODE_LOST, ONGOING, True),
        (Cause.PLACEMENT_MISMATCH, ONGOING, False),
        (Cause.NODE_LOST, DUE, True),
        (Cause.EVICTED, DUE, True),
        (Cause.USER_ERROR, DUE, False),
        (Cause.NODE_LOST, COMING, False),
        (Cause.NODE_LOST, None, False),
    ],
)
def test_what_maintenance_is_to_blame_for(cause: Cause, notice: Notice | None, put_down: bool) -> None:
    failure = Failure(cause=cause, pod="p", message="it broke", time=NOW)
    result = attributed(failure, notice, NOW)
    assert result.cause == (Cause.MAINTENANCE if put_down else cause)
    if put_down and notice:
        assert result.message == f"{notice.text}: it broke"
