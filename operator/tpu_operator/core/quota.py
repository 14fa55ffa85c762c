"""Whether a namespace's ResourceQuotas have room for all the pods that a job lacks.

The API server counts pod by pod. It would let half a gang in, which holds chips and cannot run; two such
halves would wait for each other for ever. Counted here is what the pods say of themselves; what others add to
them on the way, such as a LimitRange or a webhook, the server itself says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpu_operator.api import BlockedReason
from tpu_operator.core.numbers import quantity
from tpu_operator.core.pending import Hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.snapshot import Quota, QuotaSpec

PODS: Final = ("pods", "count/pods")
"""Names under which quotas count pods; the first leaves out those that have finished."""

UNIT: Final = 1000
"""Amounts are whole thousandths, in which quantities of CPUs are."""

NAMED_ALONE: Final = ("cpu", "memory", "ephemeral-storage", "hugepages-")
"""Resources that quotas also count by their own names, and not just as `requests.` of them."""

_Amounts = Counter[str]

COMPUTE: Final = frozenset({"requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})


class Use(NamedTuple):
    """What is used of quotas: a resource by its name in quotas, and by which pods, as scopes tell them apart.

    Attributes:
        resource: such as `requests.google.com/tpu`.
        priority: name of their PriorityClass, if they have one of their own.
        terminating: whether they end at a time.
        best_effort: whether they ask for neither CPUs nor memory.
    """

    resource: str
    priority: str = ""
    terminating: bool = False
    best_effort: bool = False


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one namespace.

    Attributes:
        items: the quotas.
        claimed: what other jobs are about to use of them, in thousandths.
    """

    items: Sequence[Quota] = ()
    claimed: Mapping[Use, int] = field(default_factory=dict)

    def shortage(self, needed: Mapping[Use, int]) -> Hold | None:
        """The first quota that has no room for what is needed, in thousandths; None if there is room."""
        for quota in self.items:
            asked, claimed = _of(quota.spec, needed), _of(quota.spec, self.claimed)
            for resource, amount in asked.items():
                if amount and (hold := _short(quota, resource, amount, claimed[resource])):
                    return hold
        return None


def _of(spec: QuotaSpec, uses: Mapping[Use, int]) -> _Amounts:
    """What of all that is used counts for a quota, by resource."""
    found: _Amounts = Counter()
    for use, amount in uses.items():
        if _counts(spec, use):
            found[use.resource] += amount
    return found


def _counts(spec: QuotaSpec, use: Use) -> bool:
    """Whether a quota is about pods like these; a scope that cannot be judged here is left to the server."""
    return all(_in_scope(scope, "Exists", (), use) for scope in spec.scopes) and all(
        _in_scope(one.scope_name, one.operator, one.values, use)
        for one in spec.scope_selector.match_expressions
    )


def _in_scope(scope: str, operator: str, values: Sequence[str], use: Use) -> bool:
    match scope:
        case "Terminating":
            return use.terminating
        case "NotTerminating":
            return not use.terminating
        case "BestEffort":
            return use.best_effort
        case "NotBestEffort":
            return not use.best_effort
        case "PriorityClass" if use.priority:
            named = use.priority in values
            return {"Exists": True, "In": named, "NotIn": not named}.get(operator, False)
        case _:
            # A pod that names no PriorityClass is given the cluster's default, which only the server knows.
            return False


def _short(quota: Quota, resource: str, needed: int, claimed: int) -> Hold | None:
    hard, used = _amount(quota.status.hard.get(resource)), _amount(quota.status.used.get(resource, "0"))
    if hard is None or used is None:
        return None
    left = max(0, hard - used - claimed)
    if needed <= left:
        return None
    text = (
        f"ResourceQuota {quota.metadata.name} has {_said(left)} of {_said(hard)} {resource} left, "
        f"{_said(needed)} are needed at once"
    )
    more = "; it has to be raised" if needed > hard else ""
    return Hold(BlockedReason.QUOTA_EXCEEDED, text + more)


def _amount(text: str | float | None) -> int | None:
    """Thousandths of what a quantity says; the API server writes 2000 as 2k."""
    found = quantity(text) if text is not None else None
    return int((found * UNIT).to_integral_value("ROUND_CEILING")) if found is not None else None


def _said(amount: int) -> str:
    """An amount for people: 96, 0.5, 400Gi."""
    for suffix, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20)):
        if amount >= size * UNIT and amount % (size * UNIT) == 0:
            return f"{amount // (size * UNIT)}{suffix}"
    return f"{(Decimal(amount) / UNIT).normalize():f}"


def demand(pods: Iterable[Manifest]) -> Counter[Use]:
    """What pods use of quotas, in thousandths."""
    found: Counter[Use] = Counter()
    for pod in pods:
        spec = pod["spec"]
        amounts = dict(_named(spec))
        priority, terminating = spec.get("priorityClassName") or "", "activeDeadlineSeconds" in spec
        for name, amount in amounts.items():
            found[Use(name, priority, terminating, amounts.keys().isdisjoint(COMPUTE))] += amount
    return found


def _named(spec: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """What a pod takes, under every name that quotas have for it."""
    yield from dict.fromkeys(PODS, UNIT).items()
    for kind in ("requests", "limits"):
        for resource, amount in _taken(spec, kind).items():
            yield f"{kind}.{resource}", amount
            if kind == "requests" and resource.startswith(NAMED_ALONE):
                yield resource, amount


def _taken(spec: Mapping[str, Any], kind: str) -> _Amounts:
    """What the containers of a pod take together, or one of those that run before them.

    As Kubernetes counts: init containers run one by one, beside the sidecars that have started before; what a
    pod says of itself as a whole replaces the sum of its containers.
    """
    beside: _Amounts = Counter()
    most: _Amounts = Counter()
    for container in spec.get("initContainers") or ():
        own = _asked(container, kind)
        most |= beside + own
        if container.get("restartPolicy") == "Always":
            beside += own
    for container in spec.get("containers") or ():
        beside += _asked(container, kind)
    found = {**(most | beside), **_asked(spec, kind)}
    overhead = _read(spec.get("overhead") or {})
    return Counter({name: amount + overhead[name] for name, amount in found.items()})


def _asked(holder: Mapping[str, Any], kind: str) -> _Amounts:
    """Requests or limits of a container, or of a pod as a whole; a limit is a request where there is none."""
    resources = holder.get("resources") or {}
    limits = _read(resources.get("limits") or {})
    return limits if kind == "limits" else Counter({**limits, **_read(resources.get("requests") or {})})


def _read(amounts: Mapping[str, Any]) -> _Amounts:
    return Counter({name: amount for name, text in amounts.items() if (amount := _amount(text))})
