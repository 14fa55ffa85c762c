"""Reminds kwok of pods that it has left alone.

kwok plays a pod when it has changed, and only then. A write that fails with anything but a timeout, a 429 or
a 503 is not tried again, and pods of a node whose Lease kwok does not see yet are passed over. Such a pod
stays Pending, or Terminating, until something else changes it: so does an annotation.
"""

import contextlib
import sys
import time
from collections.abc import Iterable
from typing import Any

from hack.devcluster import controlplane
from hack.devcluster.api import Api
from hack.devcluster.fake import HOLD
from hack.devcluster.process import Component
from hack.devcluster.state import CHECKOUT, DevClusterError, Layout, Record

_REMINDED = "devcluster/reminded"
_BOUND = "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName!="
_SECONDS = 5.0
_SHARE = 0.02

Object = dict[str, Any]


def pause(took: float) -> float:
    """Seconds until the next look, after one that took so long: many pods are looked at less often."""
    return max(_SECONDS, took / _SHARE)


def waits(pod: Object) -> bool:
    """Tell whether it is kwok's turn: the pod has a node and is to start or to go, and nobody holds it."""
    meta = pod["metadata"]
    if HOLD in (meta.get("annotations") or {}):
        return False
    if "deletionTimestamp" in meta:
        # With no grace left, it is a finalizer that is waited for.
        return bool(meta.get("deletionGracePeriodSeconds"))
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") == "Pending"


def forgotten(pods: Iterable[Object], before: set[str]) -> tuple[list[Object], set[str]]:
    """Find the pods that have waited since the look before the last.

    Args:
        pods: all that there are.
        before: UIDs of those that waited at the last look.

    Returns:
        The pods, and the UIDs for the next look: of all that wait, but those that will be reminded.
    """
    waiting = {pod["metadata"]["uid"]: pod for pod in pods if waits(pod)}
    late = [pod for uid, pod in waiting.items() if uid in before]
    return late, waiting.keys() - before


def component(layout: Layout) -> Component:
    """Describe the process that reminds."""
    # Components have no environment of their caller's, and its directory may be another checkout.
    python = ["env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-P"]
    return Component("reminder", [*python, "-c", f"from {__name__} import main; main({layout.name!r})"])


def main(name: str) -> None:
    """Look again and again, for ever."""
    layout = Layout(name)
    api = controlplane.connect(layout, Record.load(layout.record))
    before: set[str] = set()
    while True:
        began = time.monotonic()
        with contextlib.suppress(DevClusterError):
            late, before = forgotten(api.get(_BOUND)["items"], before)
            for pod in late:
                _remind(api, pod)
        time.sleep(pause(time.monotonic() - began))


def _remind(api: Api, pod: Object) -> None:
    meta = pod["metadata"]
    name = f"{meta['namespace']}/{meta['name']}"
    print(f"kwok is reminded of {name} on {pod['spec']['nodeName']}", file=sys.stderr, flush=True)
    note = {"metadata": {"uid": meta["uid"], "annotations": {_REMINDED: str(time.time())}}}
    with contextlib.suppress(DevClusterError):
        api.merge(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", note)
