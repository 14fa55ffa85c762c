"""The configuration of the endpoint picker: which plugins choose replicas, and between which revisions.

Source: the plugins and samples of llm-d's router 0.10. Its rollout screener goes by any labels that it is
told of: by ours, every request stays within one revision, revisions share the traffic as their capacity does,
and one that lacks a role gets none.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpu_operator.api import RoleType
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_operator.api import TPUInference

API_VERSION: Final = "llm-d.ai/v1alpha1"
REVISION_HEADER: Final = "x-disagg-revision"
NOT_CACHED_TOKENS: Final = 16
"""Fewer tokens than these that a decoder would have to prefill are not worth to be prefilled elsewhere."""
SCORERS: Final = (("prefix-cache-scorer", 2), ("queue-scorer", 1))

Plugin = dict[str, Any]


class Serving(NamedTuple):
    """A revision that has replicas, as far as it matters to who picks them.

    Attributes:
        types: of its roles.
        servable: whether there is a ready replica of every role.
    """

    types: frozenset[RoleType]
    servable: bool


def serving(inference: str) -> dict[str, str]:
    """Labels of the pods of a TPUInference that take requests: host 0 of each replica that is not drained."""
    return {names.LABEL_INFERENCE: inference, names.LABEL_LLMD_SERVING: names.SERVING}


def selector(inference: str) -> str:
    """The same as a label selector."""
    return ",".join(f"{key}={value}" for key, value in serving(inference).items())


def default_config(inference: TPUInference, revisions: Sequence[Serving] = ()) -> str:
    """The EndpointPickerConfig where the spec has none, as YAML.

    Args:
        inference: the object.
        revisions: those that have replicas, the newest first; the spec's alone where there is none.
    """
    given = revisions or [Serving(frozenset(role.type for role in inference.spec.roles), servable=False)]
    apart = {RoleType.PREFILL, RoleType.DECODE} <= frozenset.union(*(each.types for each in given))
    gate = _gate(inference, required(given))
    config = {
        "apiVersion": API_VERSION,
        "kind": "EndpointPickerConfig",
        "plugins": [*_common(), *(_disaggregation() if apart else _single()), gate],
        "schedulingProfiles": [_profile("prefill"), _profile("decode")] if apart else [_profile("default")],
    }
    return json.dumps(config, indent=2) + "\n"


def required(revisions: Sequence[Serving]) -> list[RoleType]:
    """Types of roles without which a revision gets no request.

    The picker knows one list for all revisions: with a type that only the newest has, those before it would
    get nothing as soon as it is asked for, long before it serves. So these are the types that all have. Where
    there is none, as when prefill and decode become one, it is the newest that counts once it serves.

    Args:
        revisions: those that have replicas, the newest first.
    """
    common = frozenset.intersection(*(each.types for each in revisions))
    serving = (each.types for each in revisions if each.servable)
    return sorted(common or next(serving, revisions[0].types))


def _common() -> list[Plugin]:
    cache = {"maxPrefixTokensToMatch": 16384, "lruCapacityPerServer": 31250}
    return [
        {"type": "approx-prefix-cache-producer", "parameters": cache},
        *({"type": scorer} for scorer, _ in SCORERS),
        {"type": "max-score-picker"},
    ]


def _single() -> list[Plugin]:
    return [{"type": "single-profile-handler"}]


def _disaggregation() -> list[Plugin]:
    decider = "prefix-based-pd-decider"
    return [
        {"type": "prefill-filter"},
        {"type": "decode-filter"},
        {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": decider}}},
        {"type": decider, "parameters": {"nonCachedTokens": NOT_CACHED_TOKENS}},
    ]


def _gate(inference: TPUInference, roles: Sequence[RoleType]) -> Plugin:
    """What keeps a request within one revision, and traffic off revisions that lack a role."""
    return {
        "type": "disaggregatedset-rollout-screener",
        "parameters": {
            "scope": {"labelSelector": selector(inference.metadata.name)},
            "headerSelectors": [
                {
                    "name": "revision",
                    "headerName": REVISION_HEADER,
                    "labelKey": names.LABEL_REVISION,
                    "mode": "strict",
                }
            ],
            "revisionGating": {
                "mode": "max-role",
                "revisionLabelKey": names.LABEL_REVISION,
                "roleLabelKey": names.LABEL_LLMD_ROLE,
                "requireRoles": {"values": [*roles]},
            },
        },
    }


def _profile(name: str) -> Plugin:
    own = [] if name == "default" else [{"pluginRef": f"{name}-filter"}]
    scorers = [{"pluginRef": scorer, "weight": weight} for scorer, weight in SCORERS]
    return {"name": name, "plugins": [*own, {"pluginRef": "max-score-picker"}, *scorers]}
