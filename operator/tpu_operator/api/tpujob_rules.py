"""CEL rules of a TPUJob that look at more than one of its fields."""

from tpu_operator.api import tpu_rules
from tpu_operator.api.extensions import Rule, names_service, rule

MAX_POD_NAME = 63
"""A pod's name is also its host name and a label of its DNS name."""


def spec_rules() -> list[Rule]:
    """Return the rules whose `self` is the spec."""
    return [_processes_fit(), _ray_processes(), _managed_by_is_fixed()]


def job_rules() -> list[Rule]:
    """Return the rules whose `self` is the whole object."""
    return [
        names_service(),
        _name_fits_pods(),
        _name_fits_head(),
        _fixed_once_started("tpu"),
        _fixed_once_started("run"),
        _strategy_fixed_once_started(),
        _queue_fixed_once_started(),
    ]


def _processes_fit() -> Rule:
    tpu = "self.tpu"
    processes = "self.run.processesPerHost"
    devices = f"{tpu_rules.chips_per_host(tpu)} * {tpu_rules.devices_per_chip(tpu)}"
    return rule(
        f"!(has({processes}) && {tpu_rules.known(tpu)} && {tpu_rules.computable(tpu)})"
        f" || {processes} <= {devices}",
        "%d is more than one per device: write 1 to %d",
        values=[processes, devices],
        path=".run.processesPerHost",
    )


def _ray_processes() -> Rule:
    return rule(
        "!(has(self.run.launcher) && self.run.launcher == 'ray' && has(self.run.processesPerHost))"
        " || self.run.processesPerHost == 1",
        "must be 1 or absent with launcher ray, which starts its own workers",
        path=".run.processesPerHost",
    )


def _managed_by_is_fixed() -> Rule:
    return rule(
        "has(self.managedBy) == has(oldSelf.managedBy)"
        " && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
        "cannot change: create a new job",
        path=".managedBy",
        reason="FieldValueForbidden",
    )


def _name_fits_pods() -> Rule:
    tpu = "self.spec.tpu"
    spares = f"(has({tpu}.spareSlices) ? {tpu}.spareSlices : 0)"
    last_slice = f"string({tpu}.slices + {spares} - 1)"
    last_host = f"string({tpu_rules.chips(tpu)} / {tpu_rules.chips_per_host(tpu)} - 1)"
    room = f"{MAX_POD_NAME} - 2 - {last_slice}.size() - {last_host}.size()"
    return _name_within(room, "<name>-<slice>-<host>", unless=f"!{tpu_rules.computable(tpu)}")


def _name_fits_head() -> Rule:
    return _name_within(f"{MAX_POD_NAME} - 5", "<name>-head", unless="!has(self.spec.head)")


def _name_within(room: str, pod: str, *, unless: str) -> Rule:
    size = "self.metadata.name.size()"
    return rule(
        f"{unless} || {size} <= {room}",
        f"%d characters make pod names {pod} longer than {MAX_POD_NAME}: write at most %d",
        values=[size, room],
        path=".metadata.name",
    )


def _strategy_fixed_once_started() -> Rule:
    """Pods that restart in place know with whom, and meet nobody else."""
    old, new = (_strategy(f"{owner}.spec") for owner in ("oldSelf", "self"))
    scopes = " == ".join(_scope(f"{owner}.spec") for owner in ("oldSelf", "self"))
    return rule(
        "!(has(oldSelf.status) && has(oldSelf.status.startTime))"
        f" || {old} == {new} && ({new} != 'InPlace' || {scopes})",
        "restartStrategy, and with InPlace restartScope, cannot change once the job has started: set "
        "spec.suspend to true and wait for phase Suspended, or create a new job",
        path=".spec.failurePolicy",
        reason="FieldValueForbidden",
    )


def _queue_fixed_once_started() -> Rule:
    """Quota is in use until pods are gone, and Kueue has to know of it."""
    old, new = (_optional(f"{owner}.spec.scheduling", "queueName", "") for owner in ("oldSelf", "self"))
    return rule(
        f"!(has(oldSelf.status) && has(oldSelf.status.startTime)) || {old} == {new}",
        "cannot change once the job has started: set spec.suspend to true and wait for phase Suspended, "
        "or create a new job",
        path=".spec.scheduling.queueName",
        reason="FieldValueForbidden",
    )


def _strategy(spec: str) -> str:
    return _optional(f"{spec}.failurePolicy", "restartStrategy", "Recreate")


def _scope(spec: str) -> str:
    return _optional(f"{spec}.failurePolicy", "restartScope", "Job")


def _optional(section: str, field: str, default: str) -> str:
    """CEL: a field of a section that may be absent, or its default."""
    return f"(has({section}) && has({section}.{field}) ? {section}.{field} : '{default}')"


def _fixed_once_started(field: str) -> Rule:
    """Keep what running pods were made from.

    A suspended job has none as soon as the operator has seen the suspension, and taken `startTime` away.
    """
    return rule(
        "!(has(oldSelf.status) && has(oldSelf.status.startTime))"
        f" || self.spec.{field} == oldSelf.spec.{field}",
        "cannot change once the job has started: set spec.suspend to true and wait for phase Suspended, "
        "or create a new job",
        path=f".spec.{field}",
        reason="FieldValueForbidden",
    )
