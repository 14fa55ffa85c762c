"""CEL rules of a TPUInference that look at more than one of its fields."""

from tpu_operator.api import tpu_rules
from tpu_operator.api.extensions import Rule, names_service, rule
from tpu_operator.catalog import MAX_HOSTS

MAX_POD_NAME = 63
"""A pod's name is also its host name and a label of its DNS name."""
REVISION_LENGTH = 8
"""Characters of a revision's name, which is part of the names of its pods."""
INDEX_LENGTH = 3
"""Digits that the index of a replica may have."""
MAX_ROLES = 8
MAX_GROUPS = 512
"""Replicas of one TPUInference, each one slice: its status speaks of each."""

_BETWEEN = 4
"""Dashes between the parts of a pod's name."""
_WAYS_OUT = (
    "set one of them to 1 or more, or in spec.rollout onCapacityShortage to DrainFirst, allowDowntime to "
    "true or strategy to Recreate"
)


def inference_rules() -> list[Rule]:
    """Return the rules whose `self` is the whole object."""
    return [names_service(), _name_fits_pods()]


def spec_rules() -> list[Rule]:
    """Return the rules whose `self` is the spec."""
    return [_zero_together(), _few_enough(), _external_alone(), _role_budgets(), _route_needs_pool()]


def role_rules() -> list[Rule]:
    """Return the rules whose `self` is a role."""
    return [_hosts_few_enough()]


def engine_rules() -> list[Rule]:
    """Return the rules whose `self` is the engine."""
    return [
        rule(
            "self.type != 'custom' || has(self.image)",
            "must be set for an engine of type custom",
            path=".image",
            reason="FieldValueRequired",
        )
    ]


def budget_rules() -> list[Rule]:
    """Return the rules whose `self` is `spec.rollout`."""
    both_zero = (
        "has(self.maxSurge) && self.maxSurge == 0 && (!has(self.maxUnavailable) || self.maxUnavailable == 0)"
    )
    return [
        rule(
            f"!({both_zero}) || {_excused('self')}",
            f"must not be 0 with maxUnavailable 0, by which nothing could ever be replaced: {_WAYS_OUT}",
            path=".maxSurge",
        ),
        _needs_two_revisions("has(self.canary)", ".canary"),
        _needs_two_revisions("has(self.partition) && self.partition > 0", ".partition"),
    ]


def canary_rules() -> list[Rule]:
    """Return the rules whose `self` is `spec.rollout.canary`."""
    return [
        rule(
            "self.steps.all(s, has(s.percent)) || self.steps.all(s, has(s.copies))",
            "must all be in the same unit: percent or copies",
            path=".steps",
        )
    ]


def _needs_two_revisions(there: str, path: str) -> Rule:
    """Where all old replicas go first, none stays beside the new ones."""
    return rule(
        f"!({there} && has(self.strategy) && self.strategy == 'Recreate')",
        "needs two revisions side by side, which strategy Recreate never has: take it away, or set strategy "
        "to RollingUpdate",
        path=path,
    )


def _excused(rollout: str) -> str:
    """CEL: the rollout has another way than budgets."""
    return (
        f"(has({rollout}.onCapacityShortage) && {rollout}.onCapacityShortage == 'DrainFirst'"
        f" || has({rollout}.allowDowntime) && {rollout}.allowDowntime"
        f" || has({rollout}.strategy) && {rollout}.strategy == 'Recreate')"
    )


def _role_budgets() -> Rule:
    """Find roles whose own budgets leave no way, with those of all roles in place of what they do not say."""

    def budget(field: str, default: int) -> str:
        common = f"has(self.rollout) && has(self.rollout.{field}) ? self.rollout.{field} : {default}"
        return f"(has(r.rollout.{field}) ? r.rollout.{field} : {common})"

    stuck = (
        f"self.roles.filter(r, has(r.rollout) && {budget('maxSurge', 1)} == 0"
        f" && {budget('maxUnavailable', 0)} == 0)"
    )
    return rule(
        f"has(self.rollout) && {_excused('self.rollout')} || {stuck}.size() == 0",
        f"%s has maxSurge 0 and maxUnavailable 0, by which nothing could ever be replaced: {_WAYS_OUT}",
        values=[f"{stuck}[0].name"],
        path=".roles",
    )


def _zero_together() -> Rule:
    """A revision without one of its roles serves nothing."""
    zero = "self.roles.filter(r, has(r.replicas) && r.replicas == 0)"
    return rule(
        f"{zero}.size() == 0 || {zero}.size() == self.roles.size()",
        "%s has 0 replicas and other roles have some, and no request is served without every role: write at "
        "least 1, or 0 for all roles",
        values=[f"{zero}[0].name"],
        path=".roles",
    )


def _few_enough() -> Rule:
    copies = "(has(self.replicas) ? self.replicas : 1)"
    total = f"{copies} * self.roles.map(r, has(r.replicas) ? r.replicas : 1).sum()"
    return rule(
        f"{total} <= {MAX_GROUPS}",
        f"%d copies are %d slices in all: a TPUInference may have {MAX_GROUPS} at most",
        values=[copies, total],
        path=".replicas",
    )


def _external_alone() -> Rule:
    external = "self.roles.filter(r, has(r.scaling) && r.scaling == 'External')"
    return rule(
        f"!has(self.replicas) || self.replicas <= 1 || {external}.size() == 0",
        "must be 1 or 0 while scaling of role %s is External: its TPUInferenceScaler counts all replicas",
        values=[f"{external}[0].name"],
        path=".replicas",
    )


def _route_needs_pool() -> Rule:
    return rule(
        "!has(self.routing) || !has(self.routing.httpRoute) || has(self.routing.inferencePool)",
        "leads to the InferencePool: set routing.inferencePool too, {} will do",
        path=".routing.httpRoute",
    )


def _hosts_few_enough() -> Rule:
    hosts = f"{tpu_rules.chips('self.tpu')} / {tpu_rules.chips_per_host('self.tpu')}"
    replicas = "(has(self.replicas) ? self.replicas : 1)"
    return rule(
        f"!{tpu_rules.computable('self.tpu')} || {hosts} * {replicas} <= {MAX_HOSTS}",
        f"%d times %s is %d hosts: a role may have {MAX_HOSTS} at most",
        values=[replicas, "self.tpu.topology", f"{hosts} * {replicas}"],
        path=".replicas",
    )


def _name_fits_pods() -> Rule:
    """The longest name of a pod, with an index of as many digits as one may ever have."""
    tpu, fixed = "r.tpu", REVISION_LENGTH + INDEX_LENGTH + _BETWEEN
    last_host = f"string({tpu_rules.chips(tpu)} / {tpu_rules.chips_per_host(tpu)} - 1)"
    rest = f"r.name.size() + {last_host}.size()"
    bad = (
        f"self.spec.roles.filter(r, {tpu_rules.computable(tpu)}"
        f" && self.metadata.name.size() + {rest} > {MAX_POD_NAME - fixed})"
    )
    return rule(
        f"{bad}.size() == 0",
        "%d characters make pod names <name>-<role>-<revision>-<replica>-<host> of role %s longer than "
        f"{MAX_POD_NAME}: shorten the name, or that of the role",
        values=["self.metadata.name.size()", f"{bad}[0].name"],
        path=".metadata.name",
    )
