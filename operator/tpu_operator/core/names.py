"""Names, labels and ports that the operator, the launcher and the users' tools agree on.

One function per name: a name that is built in two places will one day differ in two places.
"""

from __future__ import annotations

import hashlib
from typing import Final

from tpu_operator.api import GROUP

FIELD_MANAGER: Final = "tpu-operator"
PREFIX: Final = f"{GROUP}/"

READ: Final = (PREFIX, "kueue.x-k8s.io/", "llm-d.ai/")
"""How the labels begin that decisions read, of all but nodes."""
LABEL_JOB: Final = PREFIX + "job"
LABEL_COMPONENT: Final = PREFIX + "component"
LABEL_SLICE: Final = PREFIX + "slice"
LABEL_HOST: Final = PREFIX + "host"
LABEL_SLICE_ID: Final = PREFIX + "slice-id"
"""Unique in the cluster, so that a slice can keep every other slice out of its node pool."""
LABEL_ATTEMPT: Final = PREFIX + "attempt"
"""How many times the pods of the gang were made anew before."""
LABEL_FIRST_ATTEMPT: Final = PREFIX + "first-attempt"
"""Where restarts happen in place: the attempt of the slice that the pod was made for, restarts of all kinds
counted."""
LABEL_HEADED: Final = PREFIX + "headed"
"""On the pods of an attempt that has a head, so that one that is asked for later is not missed in it."""
LABEL_REVISION: Final = PREFIX + "revision"
"""Hash of all that a pod was made from, so that no attempt mixes pods of two templates."""

LABEL_INFERENCE: Final = PREFIX + "inference"
OWNERS: Final = (LABEL_JOB, LABEL_INFERENCE)
"""By which of them we find what belongs to an object of ours."""
LABEL_ROLE: Final = PREFIX + "role"
LABEL_COPY: Final = PREFIX + "copy"
"""Which whole copy of the role set a replica was made for."""
LABEL_REPLICA: Final = PREFIX + "replica"
"""Index of a replica among those of its role and revision."""
LABEL_KV_COMPAT: Final = PREFIX + "kv-compat"
"""Equal for replicas that can hand KV caches to each other."""
LABEL_LLMD_ROLE: Final = "llm-d.ai/role"
LABEL_LLMD_SERVING: Final = "llm-d.ai/inference-serving"
"""On host 0 of a replica: "true" while routers may send it requests."""
SERVING: Final = "true"
NOT_SERVING: Final = "false"

ANNOTATION_PROMOTED: Final = PREFIX + "promoted"
"""On a TPUInference: steps of its canary that somebody has counted as done, as `<generation>/<steps>`."""
ANNOTATION_MAINTENANCE: Final = PREFIX + "maintenance"
"""On the pods of a gang: when maintenance of its nodes begins. Their launchers read it from a file."""

WORKER: Final = "worker"
SPARE: Final = "spare"
HEAD: Final = "head"
MAIN_CONTAINER: Final = "main"

TPU_RESOURCE: Final = "google.com/tpu"
NODE_ACCELERATOR: Final = "cloud.google.com/gke-tpu-accelerator"
NODE_TOPOLOGY: Final = "cloud.google.com/gke-tpu-topology"
NODE_CHIPS: Final = "cloud.google.com/gke-accelerator-count"
NODE_POOL: Final = "cloud.google.com/gke-nodepool"
NODE_MACHINE_END: Final = "node.gke.io/machine-termination-datetime"
"""Annotation: when a machine of limited life, such as one of flex-start, ends."""

LAUNCHER_PORT: Final = 8090
LAUNCHER_PORT_BESIDE_MEGASCALE: Final = 8100
"""Where TorchTPU's MegaScale takes the usual one."""
PROCESS_PORT: Final = 8476
MASTER_PORT: Final = 29500
SLICEBUILDER_PORT: Final = 8070
MEGASCALE_PORT: Final = 8080
"""Of process 0 of a host; TorchTPU gives process i 8080 + 2i, and the next one for debugging."""
RAY_DASHBOARD_PORT: Final = 8265
RAY_METRICS_PORT: Final = 8266
"""Of each node of a Ray cluster, for Prometheus; its dashboard is on the head alone."""
JAX_COORDINATOR_PORT: Final = 8482
"""Where process 0 of a JAX program waits for the others; JAX does not say so anywhere else."""


def worker_name(job: str, slice_index: int, host: int) -> str:
    """Pod name of one host; also its hostname."""
    return f"{job}-{slice_index}-{host}"


def head_name(job: str) -> str:
    """Pod name of the optional CPU head."""
    return f"{job}-head"


def role_name(inference: str, role: str, revision: str) -> str:
    """What the names of all pods of a role begin with, in one revision."""
    return f"{inference}-{role}-{revision}"


def revision_name(inference: str, revision: str) -> str:
    """Name of the ControllerRevision that remembers a revision."""
    return f"{inference}-{revision}"


def scaler_name(inference: str, role: str) -> str:
    """Name of the TPUInferenceScaler of a role."""
    return f"{inference}-{role}"


def group_name(role: str, revision: str, index: int) -> str:
    """Name of a replica of a role, unique in its TPUInference."""
    return f"{role}-{revision}-{index}"


def group_id(inference_uid: str, group: str) -> str:
    """Value of the label `slice-id` of a replica, of which the name alone may be too long."""
    return f"{inference_uid}-{hashlib.sha256(group.encode()).hexdigest()[:10]}"


def slice_name(job: str, slice_index: int) -> str:
    """Unique name of one slice, the value of TPU_NAME."""
    return f"{job}-{slice_index}"


def slice_id(job_uid: str, slice_index: int) -> str:
    """Value of the label `slice-id`."""
    return f"{job_uid}-{slice_index}"


def dns_name(pod: str, subdomain: str) -> str:
    """Name by which pods of the same namespace reach a pod through the headless Service."""
    return f"{pod}.{subdomain}"
