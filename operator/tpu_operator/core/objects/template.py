"""What is wrong with a user's PodTemplateSpec before anything is made from it.

The CRD leaves the template's `spec` open: a schema of all of PodSpec would soon be out of date. The
API server judges the pods; here only the form of what merging and building rely on is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

Amounts = dict[str, str | int | float | None]


class _Part(msgspec.Struct, rename="camel"):
    """Base of all parts. A null stands where it removes what would be there otherwise."""


class _Named(_Part):
    name: str


class _Variable(_Part):
    name: str
    value: str | None = None


class _Mount(_Part):
    mount_path: str


class _Port(_Part):
    container_port: int
    protocol: str | None = None


class _Resources(_Part):
    limits: Amounts | None = None
    requests: Amounts | None = None


class _Container(_Part):
    name: str
    image: str | None = None
    env: list[_Variable] | None = None
    ports: list[_Port] | None = None
    resources: _Resources | None = None
    restart_policy: str | None = None
    volume_mounts: list[_Mount] | None = None


class _Toleration(_Part):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Terms(_Part):
    required_during_scheduling_ignored_during_execution: list[Any] | None = None


class _Affinity(_Part):
    node_affinity: dict[str, Any] | None = None
    pod_affinity: _Terms | None = None
    pod_anti_affinity: _Terms | None = None


class _Spec(_Part):
    containers: list[_Container] = []
    init_containers: list[_Container] | None = None
    volumes: list[_Named] | None = None
    tolerations: list[_Toleration] | None = None
    node_selector: dict[str, str | None] | None = None
    affinity: _Affinity | None = None
    host_network: bool | None = None
    termination_grace_period_seconds: int | None = None
    priority_class_name: str | None = None
    active_deadline_seconds: int | None = None
    resources: _Resources | None = None
    overhead: Amounts | None = None
    hostname: str | None = None
    subdomain: str | None = None


class _Metadata(_Part):
    labels: dict[str, str | None] = {}
    annotations: dict[str, str | None] = {}


class _Template(_Part):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)


def problem(template: Mapping[str, Any] | None, field: str) -> str:
    """The first fault of form, with the field that has it; empty when there is none.

    Args:
        template: the template, if the job has one.
        field: where that is in the job.
    """
    try:
        msgspec.convert(template or {}, type=_Template)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        return f"{field}{place.rstrip('`')}: {fault}"
    return ""


def size(template: object) -> int:
    """How many values a template holds, those in others included."""
    if isinstance(template, dict):
        return len(template) + sum(map(size, template.values()))
    return len(template) + sum(map(size, template)) if isinstance(template, list) else 0
