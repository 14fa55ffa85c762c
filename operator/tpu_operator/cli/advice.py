"""What reasons, causes and gates mean, and what a person can do about each: data for `why` and `explain`."""

from __future__ import annotations

from typing import Final, NamedTuple

from tpu_operator.api import BlockedReason, Cause, HoldGate


class Advice(NamedTuple):
    """What a word of the API means.

    Attributes:
        meaning: a sentence.
        remedies: what to do, the likeliest first. {job} stands for the object's name.
    """

    meaning: str
    remedies: tuple[str, ...]


BLOCKED: Final = {
    BlockedReason.NO_MATCHING_NODES: Advice(
        "No node has the labels of this accelerator, topology and number of chips per host.",
        (
            "`kubectl tpu topologies --available` shows which slices the cluster has",
            "create the node pool, or change what the spec asks for (suspend a job first that has started)",
        ),
    ),
    BlockedReason.CAPACITY_IN_USE: Advice(
        "There are such node pools, but other slices are in them.",
        (
            "wait: it starts by itself when a node pool is free",
            "free one: the message says who holds which; `kubectl tpu suspend` stops a job and keeps it",
            "add a node pool, or give the job a priority class (spec.scheduling.priorityClassName)",
        ),
    ),
    BlockedReason.UNSCHEDULABLE: Advice(
        "There are such nodes, but not enough of one node pool that pods may use.",
        (
            "uncordon, untaint or repair the nodes that the message names",
            "check spec.schedulerName of spec.template, if it is set",
        ),
    ),
    BlockedReason.QUOTA_EXCEEDED: Advice(
        "A ResourceQuota of the namespace has no room for all pods of the gang at once.",
        (
            "`kubectl describe resourcequota` shows what is used; free some of it",
            "ask for more: all pods of a gang are made together or not at all",
        ),
    ),
    BlockedReason.AWAITING_ADMISSION: Advice(
        "The job's queue has not admitted it, or its pods have scheduling gates.",
        (
            "`kubectl describe workload` and `kubectl get localqueue` say what the queue waits for",
            "check that the queue of spec.scheduling.queueName exists and is not stopped",
        ),
    ),
    BlockedReason.IMAGE_PULL_FAILED: Advice(
        "A kubelet cannot have a container's image.",
        (
            "check name and tag of the image, and that the nodes reach the registry",
            "give the pods a pull secret (spec.template.spec.imagePullSecrets)",
        ),
    ),
    BlockedReason.CREATE_REFUSED: Advice(
        "The API server would not create an object of the job, or a kubelet cannot create a container.",
        ("do what the message says: a policy, a misspelt field, a missing ConfigMap, Secret or volume",),
    ),
    BlockedReason.PLACEMENT_MISMATCH: Advice(
        "A slice was spread over several node pools, whose chips are not wired to each other.",
        ("wait: the slice is made again; check node selectors of spec.template if it comes back",),
    ),
    BlockedReason.ENVIRONMENT_CONFLICT: Advice(
        "spec.template sets something that a gang cannot work with, or a variable is too long for Linux.",
        ("change the fields that the message names",),
    ),
    BlockedReason.WAITING_FOR_OLD_PODS: Advice(
        "Pods of an earlier attempt, or of a deleted job of the same name, do not go away.",
        (
            "look at the finalizers of the pods and at their nodes: they may still hold the chips",
            "`kubectl delete pod --force` only where the node is known to be off",
        ),
    ),
}

CAUSES: Final = {
    Cause.USER_ERROR: Advice(
        "The program ended with a code other than 0, or a signal killed it.",
        ("`kubectl tpu logs {job} --failed` shows the last lines of the host that failed first",),
    ),
    Cause.OUT_OF_MEMORY: Advice(
        "The kernel killed a process for its memory (of the host, not of the chips).",
        (
            "raise spec.run.resources.limits.memory if it is set below what the node has",
            "load less at once: prefetching, data loaders, checkpoints in memory",
        ),
    ),
    Cause.HANG: Advice(
        "The launcher gave up on processes that did nothing.",
        ("`kubectl tpu logs {job}` of all hosts: the one that fell silent first is the one to look at",),
    ),
    Cause.STARTUP_TIMEOUT: Advice(
        "The hosts did not come up in time, or did not meet at the launcher's gate.",
        (
            "`kubectl tpu status {job}` shows which hosts are not ready, and why",
            "raise spec.startupTimeoutSeconds above the time that the image takes to be pulled",
        ),
    ),
    Cause.LAUNCHER_ERROR: Advice(
        "The environment of the pods is wrong, tpu-doctor has found an error, or the launcher broke.",
        (
            "do what the message says; it names the variable and who has set it",
            "`kubectl tpu exec {job} --rank 0 -- tpu-doctor` checks a host that runs",
        ),
    ),
    Cause.PREEMPTED: Advice(
        "The scheduler took a node for a pod of higher priority.",
        ("nothing: it restarts when there is room, and is not charged", "raise the job's priority"),
    ),
    Cause.EVICTED: Advice(
        "A node was drained, short of something or shutting down, or a kubelet would not run the pod.",
        (
            "nothing: it restarts, and is not charged",
            "if it comes back: `kubectl describe node` says what the node is short of",
        ),
    ),
    Cause.NODE_LOST: Advice(
        "A node is out of touch, gone or out of service.",
        ("nothing: it restarts on other nodes, and is not charged; spec.tpu.spareSlices makes that fast",),
    ),
    Cause.MAINTENANCE: Advice(
        "The platform took a node for maintenance.",
        ("nothing: it restarts on other nodes, and is not charged",),
    ),
    Cause.POD_DELETED: Advice(
        "Somebody deleted a pod.",
        ("nothing: it restarts, and is not charged; `kubectl tpu restart` does the same",),
    ),
    Cause.TPU_FAULT: Advice(
        "The chips of a host cannot be used.",
        (
            "it restarts, and is not charged; if it is the same node again, cordon and repair it",
            "`kubectl tpu exec {job} --rank 0 -- tpu-doctor` checks the chips of a host that runs",
        ),
    ),
    Cause.PLACEMENT_MISMATCH: Advice(
        "A slice was spread over several node pools.",
        ("check node selectors and affinities of spec.template",),
    ),
}

ENDS: Final = {
    "MaxRestartsReached": Advice(
        "The job has used up all of spec.failurePolicy.maxRestarts.",
        (
            "repair the cause, and create the job again; a job that has ended does not start again",
            "failures that should not count: a rule with RestartUncounted in spec.failurePolicy.rules",
        ),
    ),
    "FailureRule": Advice(
        "A rule of spec.failurePolicy.rules ends the job for failures like this one.",
        ("repair the cause, and create the job again; a job that has ended does not start again",),
    ),
    "DeadlineExceeded": Advice(
        "The job was active for longer than spec.activeDeadlineSeconds.",
        ("raise it, and create the job again; waiting for nodes counts as active",),
    ),
}
"""Why jobs fail: reasons of the condition Failed."""

GATES: Final = {
    HoldGate.READINESS: Advice(
        "Replicas have been made, and it goes on once they are ready: engines load and compile first.",
        (
            "`kubectl tpu status {job}` shows which hosts are not ready, and why",
            "`kubectl tpu logs {job} --failed` shows the last lines of a replica that has failed",
            "`kubectl tpu rollout rollback {job}` goes back, if the new revision is wrong",
        ),
    ),
    HoldGate.RATIO: Advice(
        "A role is ahead of the others, and waits so that the revision keeps their ratio.",
        ("wait; `kubectl tpu status {job}` shows what the other roles wait for",),
    ),
    HoldGate.PAIRING: Advice(
        "Roles of a revision go together, so that none is left without those that it serves with.",
        ("wait; `kubectl tpu status {job}` shows which replicas are not ready",),
    ),
    HoldGate.SURGE: Advice(
        "The budgets leave no way: no replica may be made before another is gone, and none may go.",
        (
            "change what the message names: maxSurge, maxUnavailable, replicas or allowDowntime",
            "`kubectl tpu rollout plan -f FILE` shows what a change would do",
        ),
    ),
    HoldGate.CAPACITY: Advice(
        "There are no nodes, or there is no quota, for a replica of the new revision.",
        (
            "wait: it goes on by itself when there is room",
            "set spec.rollout.onCapacityShortage to DrainFirst: it stops old replicas first, one at a time",
            "set maxSurge to 0 and maxUnavailable to 1: the rollout then takes no slice more than there are",
            "`kubectl tpu topologies --available` shows node pools, and who is in them",
        ),
    ),
    HoldGate.PAUSE: Advice(
        "Somebody wants the rollout to stand here: it is paused, or a step of its canary lasts.",
        (
            "`kubectl tpu rollout resume {job}` goes on after spec.rollout.paused",
            "`kubectl tpu rollout promote {job}` ends a step of a canary",
            "`kubectl tpu rollout rollback {job}` goes back",
        ),
    ),
    HoldGate.PARTITION: Advice(
        "spec.rollout.partition keeps copies at the revisions before.",
        ("lower spec.rollout.partition; 0 lets all copies go on",),
    ),
    HoldGate.ANALYSIS: Advice(
        "The analysis of a step of the canary has not passed.",
        (
            "wait for the analysis, and look at what its queries are answered",
            "`kubectl tpu rollout promote {job}` goes on without it",
            "`kubectl tpu rollout rollback {job}` goes back",
        ),
    ),
    HoldGate.DRAIN: Advice(
        "Replicas are on their way out, and finish what they are at.",
        ("wait: spec.drain says how long they may take",),
    ),
    HoldGate.DEADLINE: Advice(
        "No replica has become ready for spec.rollout.progressDeadlineSeconds. It goes on as soon as it can.",
        (
            "`kubectl tpu status {job}` shows which hosts are not ready, and why",
            "`kubectl tpu logs {job} --failed` shows the last lines of a replica that has failed",
            "`kubectl tpu rollout rollback {job}` goes back to the revision before",
        ),
    ),
}
"""What a rollout may wait for."""
