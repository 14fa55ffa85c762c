"""What a test that has waited in vain says of pods."""

from __future__ import annotations

from typing import Any

from tests.kube import unready


def pod(name: str, ready: str | None = None, **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready}] if ready else None
    return {
        "metadata": {"name": name},
        "spec": spec,
        "status": {"phase": "Pending", "conditions": conditions},
    }


def test_pods_that_are_not_ready_are_named_with_their_nodes() -> None:
    going = pod("d", "True", nodeName="node-1")
    going["metadata"]["deletionTimestamp"] = "now"
    pods = [pod("a", "True"), pod("b"), pod("c", "False", nodeName="node-0"), going]
    assert unready(pods) == (
        "; not ready at the API server: b on no node (Pending, Ready=None), "
        "c on node-0 (Pending, Ready=False), d on node-1 (Pending, Ready=True, Terminating)"
    )
    assert unready([]) == "; not ready at the API server: no pod"
