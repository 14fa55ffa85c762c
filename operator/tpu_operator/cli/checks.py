"""What `kubectl tpu doctor` finds, as pure functions of what it has read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.api.crd import KINDS, definition
from tpu_operator.cli.findings import Finding, Severity
from tpu_operator.cli.nodechecks import nodes
from tpu_operator.cli.text import age
from tpu_operator.core import names
from tpu_operator.core.pending import counted, some
from tpu_operator.core.quota import PODS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpu_operator.core.snapshot import Node, Quota

Object = dict[str, Any]

OLDEST: Final = (1, 31)
"""Version of Kubernetes that the rules of the CRDs need."""
LEASE_GRACE: Final = timedelta(seconds=30)
"""How long after a renewal a Lease still says that its holder works: twice what a fail-over takes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read of a cluster; None for what may not be read, or is not there.

    Attributes:
        namespace: that of the caller.
        version: of the API server, as /version has it.
        crds: CustomResourceDefinitions of ours, by name.
        served: whether TPUJobs are served.
        lease: the operator's.
        deployment: the operator's.
        nodes: those with TPUs.
        quotas: of the namespace.
        groups: API groups that are served.
        may: what the caller may do, by words for it.
    """

    namespace: str
    version: Object
    crds: Mapping[str, Object | None]
    served: bool
    lease: Object | None
    deployment: Object | None
    nodes: Sequence[Node] | None
    quotas: Sequence[Quota] | None
    groups: frozenset[str] = frozenset()
    may: Mapping[str, bool] = field(default_factory=dict)


def examine(facts: Facts, now: datetime) -> list[Finding]:
    """All findings, check by check."""
    return [
        *_server(facts),
        *_crds(facts),
        *_operator(facts, now),
        *nodes(facts.nodes),
        *_quotas(facts),
        *_extras(facts),
        *_rights(facts),
    ]


def _server(facts: Facts) -> Iterator[Finding]:
    text = str(facts.version.get("gitVersion", "of unknown version"))
    digits = [
        "".join(c for c in str(facts.version.get(key, "")) if c.isdecimal()) for key in ("major", "minor")
    ]
    if all(digits) and (int(digits[0]), int(digits[1])) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        yield Finding("server", Severity.ERROR, f"Kubernetes {text}", f"upgrade it to {needed} or newer")
    else:
        yield Finding("server", Severity.OK, f"Kubernetes {text}")


def _digits(text: str) -> int:
    """The number in a text such as "31+"; 0 if there is none."""
    return int("".join(filter(str.isdecimal, text)) or "0")


def _crds(facts: Facts) -> Iterator[Finding]:
    for kind in KINDS:
        ours = definition(kind)
        name = ours["metadata"]["name"]
        theirs = facts.crds.get(name)
        if theirs is not None:
            yield _compare(name, ours, theirs)
        elif facts.served:
            yield Finding("crds", Severity.OK, f"{name} is served (its definition may not be read)")
        else:
            remedy = "install the chart, or `tpu-operator crds | kubectl apply --server-side -f -`"
            yield Finding("crds", Severity.ERROR, f"{name} is not there", remedy)


def _compare(name: str, ours: Object, theirs: Object) -> Finding:
    conditions = {c["type"]: c["status"] for c in theirs.get("status", {}).get("conditions", [])}
    if conditions.get("Established") != "True":
        return Finding(
            "crds", Severity.ERROR, f"{name} is not established", f"`kubectl describe crd {name}` says why"
        )
    lacks, has = _fields(ours) - _fields(theirs), _fields(theirs) - _fields(ours)
    if lacks:
        text = f"{name} is older than this program: it lacks {some(sorted(lacks))}"
        return Finding("crds", Severity.WARNING, text, "upgrade the chart; it upgrades the CRDs")
    if has:
        text = f"{name} is newer than this program: it has {some(sorted(has))}"
        return Finding("crds", Severity.NOTE, text, "use the kubectl-tpu of that version")
    return Finding("crds", Severity.OK, f"{name} is as this program knows it")


def _fields(crd: Object) -> set[str]:
    """Paths of all fields of the spec."""
    versions = crd.get("spec", {}).get("versions", [])
    schema = versions[0].get("schema", {}).get("openAPIV3Schema", {}) if versions else {}
    return set(_paths(schema.get("properties", {}).get("spec", {}), "spec"))


def _paths(schema: Object, path: str) -> Iterator[str]:
    inner = schema.get("items", schema)
    for name, below in inner.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _paths(below, f"{path}.{name}")


def _operator(facts: Facts, now: datetime) -> Iterator[Finding]:
    if (deployment := facts.deployment) is not None:
        yield _replicas(deployment)
    spec = (facts.lease or {}).get("spec", {})
    holder, renewed = spec.get("holderIdentity"), _time(spec.get("renewTime"))
    logs = "`kubectl logs` of its pods says why"
    if facts.lease is None:
        text = "no Lease of the operator can be read: it has never led here, or you may not look"
        severity = Severity.NOTE if facts.deployment else Severity.WARNING
        yield Finding("operator", severity, text, "--operator-namespace says where the operator is installed")
    elif holder and renewed and now - renewed < LEASE_GRACE:
        yield Finding("operator", Severity.OK, f"{holder} leads")
    elif not renewed:
        yield Finding("operator", Severity.ERROR, "no replica leads", logs)
    else:
        text = f"no replica leads: the Lease was last renewed {age(renewed, now)} ago"
        yield Finding("operator", Severity.ERROR, text, logs)


def _replicas(deployment: Object) -> Finding:
    wanted, ready = (
        deployment["spec"].get("replicas", 1),
        deployment.get("status", {}).get("readyReplicas", 0),
    )
    containers = deployment["spec"]["template"]["spec"]["containers"]
    text = f"{ready} of {counted(wanted, 'replica', 'replicas')} ready, image {containers[0]['image']}"
    if ready >= wanted:
        return Finding("operator", Severity.OK, text)
    severity = Severity.WARNING if ready else Severity.ERROR
    return Finding("operator", severity, text, "`kubectl describe` and `kubectl logs` of its pods say why")


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _quotas(facts: Facts) -> Iterator[Finding]:
    if facts.quotas is None:
        yield Finding("quotas", Severity.NOTE, f"you may not look at ResourceQuotas of {facts.namespace}")
        return
    limits = [
        (quota.metadata.name, key, quota.status.used.get(key, "0"), quota.status.hard[key])
        for quota in facts.quotas
        for key in (f"requests.{names.TPU_RESOURCE}", *PODS)
        if key in quota.status.hard
    ]
    for name, key, used, hard in limits:
        full = used == hard
        text = f"ResourceQuota {name} of {facts.namespace}: {used} of {hard} {key} used"
        remedy = "no job can start until some is freed, or the quota is raised" if full else ""
        yield Finding("quotas", Severity.WARNING if full else Severity.OK, text, remedy)
    if not limits:
        yield Finding("quotas", Severity.OK, f"no ResourceQuota of {facts.namespace} limits pods or chips")


def _extras(facts: Facts) -> Iterator[Finding]:
    kueue = "kueue.x-k8s.io" in facts.groups
    text = "Kueue is there: spec.scheduling.queueName works" if kueue else "Kueue is not there: no queues"
    yield Finding("queues", Severity.OK if kueue else Severity.NOTE, text)


def _rights(facts: Facts) -> Iterator[Finding]:
    denied = [what for what, allowed in facts.may.items() if not allowed]
    if denied:
        remedy = "ask for the role `edit` in the namespace; `view` is enough to look"
        yield Finding(
            "rights", Severity.NOTE, f"you may not {', '.join(denied)} in {facts.namespace}", remedy
        )
    elif facts.may:
        yield Finding("rights", Severity.OK, f"you may {', '.join(facts.may)} in {facts.namespace}")
