"""What a job and its pods must have in common with those of a fresh job of the same spec."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from tests.cluster.operations.site import FRESH, LANES
from tpu_operator.core.names import LABEL_ATTEMPT, LABEL_COMPONENT, LABEL_FIRST_ATTEMPT, SPARE

if TYPE_CHECKING:
    from tests.cluster.operations.fields import Object
    from tests.cluster.operations.site import Look

SAYS_MORE: Final = {"Ready", "EnvironmentOverridden"}
"""Types and reasons of conditions that say something while they are false. Others say only that they were
true once, of which a job that has come a shorter way knows nothing."""
COUNTING: Final = {"Unschedulable", "CapacityInUse"}
HISTORY: Final = ("observedGeneration", "startTime", "completionTime")
"""Fields of the status that tell when something was, or how often the spec has changed."""
RUNNING: Final = {"Running", "Suspended", "Succeeded", "Failed"}
ATTEMPTS: Final = (LABEL_ATTEMPT, LABEL_FIRST_ATTEMPT)
OURS: Final = "tpu-operator.dev/tpu-operator"


def settled(look: Look, name: str, generation: int) -> bool:
    """Whether the operator has come to an end with that generation of a job."""
    job = look.jobs.get(name)
    if job is None or job["metadata"]["generation"] != generation:
        return False
    if job["spec"].get("managedBy", OURS) != OURS:
        return True
    status = job.get("status", {})
    at_rest = status.get("phase") in RUNNING or blocked(job) is not None
    return at_rest and status["observedGeneration"] == generation


def blocked(job: Object) -> Object | None:
    """The condition Blocked, if it is true."""
    conditions = job.get("status", {}).get("conditions", [])
    return next((c for c in conditions if (c["type"], c["status"]) == ("Blocked", "True")), None)


def portrait(look: Look, name: str) -> Object:
    """A job, its pods and its Services, without what two jobs of one spec may differ in."""
    job = look.jobs.get(name, {"metadata": {"uid": name}})
    pods = {key: _pod(pod) for key, pod in look.pods.get(name, {}).items() if not _is_spare(pod)}
    slices = job.get("spec", {}).get("tpu", {}).get("slices", 1)
    services = {key: _service(item) for key, item in look.services.get(name, {}).items()}
    return _mapped(
        {"status": _status(job.get("status", {}), slices), "pods": pods, "services": services},
        job["metadata"]["uid"],
    )


def _is_spare(pod: Object) -> bool:
    """Whether a pod is of a spare slice, which is there or not as there is room."""
    return bool(pod["metadata"]["labels"].get(LABEL_COMPONENT) == SPARE)


def _status(status: Object, slices: int) -> Object:
    kept = {key: value for key, value in status.items() if key not in HISTORY}
    kept["conditions"] = {
        c["type"]: (c["status"], c["reason"], _likened(c["reason"], c["message"]))
        for c in status.get("conditions", [])
        if c["status"] == "True" or SAYS_MORE & {c["type"], c["reason"]}
    }
    if "message" in kept:
        kept["message"] = _likened(str(kept.get("reason")), kept["message"])
    if "pending" in kept:
        kept["pending"] = {"reason": kept["pending"]["reason"]}
    # Every suspension is a new attempt; the pools of two jobs differ, and the last one is remembered.
    kept["slices"] = [
        item | {"attempt": 0, "nodePool": ""} for item in status.get("slices", []) if item["index"] < slices
    ]
    kept["times"] = [key in status for key in ("startTime", "completionTime")]
    return kept


def _likened(reason: str, message: str) -> str:
    """A message without what differs from one moment to the next.

    That is nodes that are in use, and the order in which the API server goes through the keys of a map when
    it lists all that is wrong with a pod.
    """
    return "" if reason in COUNTING else message.partition(" is invalid: [")[0]


def _pod(pod: Object) -> Object:
    meta, spec, status = pod["metadata"], dict(pod["spec"]), pod["status"]
    spec.pop("nodeName", None)
    labels = meta["labels"] | {label: "0" for label in ATTEMPTS if label in meta["labels"]}
    ready = [c["status"] for c in status.get("conditions", []) if c["type"] == "Ready"]
    return {
        "labels": labels,
        "annotations": meta.get("annotations", {}),
        "owners": meta["ownerReferences"],
        "deleting": "deletionTimestamp" in meta,
        "spec": _without_attempt(spec),
        "status": (status["phase"], ready),
    }


def _without_attempt(spec: Object) -> Object:
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        container["env"] = [
            {"name": var["name"]} if var["name"] == "TPU_OPERATOR_ATTEMPT" else var
            for var in container.get("env", ())
        ]
    return spec


def _service(service: Object) -> Object:
    meta = service["metadata"]
    return {"labels": meta["labels"], "owners": meta["ownerReferences"], "spec": service["spec"]}


def _mapped(portrait: Object, uid: str) -> Object:
    """Without the job's identity, its namespace, and numbers that are drawn from them."""
    text = json.dumps(portrait).replace(uid, "UID").replace(LANES, "NAMESPACE").replace(FRESH, "NAMESPACE")
    text = re.sub(r"ops-(one|two)-\d+", r"ops-\1", text)
    # Other tests leave nodes behind, of which one job may be given a pool and the other not.
    text = re.sub(r"faults-pool-\d+", "ops-two", text)
    text = re.sub(r"(kube-api-access-)\w+", r"\1X", text)
    text = re.sub(r'("TORCH_TPU_XPROF_SESSION_ID", "value": )"\d+"', r'\1"N"', text)
    found: Object = json.loads(text)
    return found


def uids(look: Look, name: str) -> set[Any]:
    """Identities of a job's pods."""
    return {pod["metadata"]["uid"] for pod in look.pods.get(name, {}).values()}
