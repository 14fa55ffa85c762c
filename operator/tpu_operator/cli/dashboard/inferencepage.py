"""The page of a TPUInference: its revisions by role, now and over time, and what holds a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_operator.cli.dashboard import charts
from tpu_operator.cli.dashboard.history import revisions
from tpu_operator.cli.dashboard.jobpage import conditions, facts, happened, verdict
from tpu_operator.cli.dashboard.markup import Child, Markup, badge, colour, join, section, table, tag, when
from tpu_operator.cli.hosts import brief
from tpu_operator.cli.rolediagnosis import diagnose_inference
from tpu_operator.cli.text import flat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from tpu_operator.api import GroupStatus, RevisionStatus, TPUInference
    from tpu_operator.cli.dashboard.history import Sample
    from tpu_operator.cli.follow import Served
    from tpu_operator.cli.happenings import Happening


def inference_page(
    seen: Served, events: Sequence[Happening], samples: Sequence[Sample], now: datetime
) -> Markup:
    """The page."""
    model = seen.inference
    meta, status = model.metadata, model.status
    return join(
        [
            tag("h1", f"{meta.namespace}/{meta.name}", " ", badge(str(status.phase))),
            facts(_facts(model)),
            verdict(diagnose_inference(seen, events, now), str(status.phase)),
            section("Revisions and roles", _matrix(model, revisions(samples))),
            section("Over time", _over_time(model, samples, now)),
            section("Replicas", _noteworthy(status.groups)),
            conditions(status.conditions),
            happened(events),
        ]
    )


def _facts(model: TPUInference) -> Iterable[tuple[str, Child]]:
    status = model.status
    yield "Ready", status.ready
    yield "Model", model.spec.model.name
    yield (
        "Engine",
        f"{model.spec.engine.type}" + (f", {model.spec.engine.image}" if model.spec.engine.image else ""),
    )
    yield "Rollout", f"{status.rollout.state}" + (f": {status.rollout.step}" if status.rollout.step else "")
    steps = model.spec.rollout.canary.steps if model.spec.rollout.canary else []
    yield "Canary", f"{status.rollout.canary_step} of {len(steps)} steps done" if steps else None
    yield "Created", when(model.metadata.creation_timestamp)
    yield "Restarts", str(status.restarts)


def _matrix(model: TPUInference, order: Sequence[str]) -> Markup:
    """Revisions as rows, roles as columns, and each replica as a box."""
    status = model.status
    roles = [role.name for role in status.roles]
    rows: list[list[Child]] = [
        [_revision(model, one, order), *(_cell(status.groups, one.name, role) for role in roles)]
        for one in status.revisions
    ]
    goals = {
        role.name: f"{role.ready} ready of {role.desired}, {role.updated} of the newest"
        for role in status.roles
    }
    if rows:
        rows.append(["all revisions", *(goals[role] for role in roles)])
    return table(("Revision", *roles), rows)


def _revision(model: TPUInference, one: RevisionStatus, order: Sequence[str]) -> Markup:
    words = [
        word
        for word, there in (
            ("newest", one.name == model.status.updated_revision),
            ("serves", one.servable),
        )
        if there
    ]
    mark = tag("span", class_=f"mark {charts.hue(one.name, order)}")
    return join([mark, one.name, tag("small", " ", ", ".join(words))])


def _cell(groups: Sequence[GroupStatus], revision: str, role: str) -> Markup:
    mine = [group for group in groups if (group.revision, group.role) == (revision, role)]
    return tag("ol", [_group(group) for group in mine], class_="boxes") if mine else Markup("")


def _group(group: GroupStatus) -> Markup:
    reason = f", {group.reason}" if group.reason else ""
    where = f" in node pool {group.node_pool}" if group.node_pool else ""
    text = f"{group.name}: {group.state} {group.ready}{where}{reason}"
    return tag("li", group.ready, class_=f"host wide {colour(str(group.state))}", title=text, aria_label=text)


def _over_time(model: TPUInference, samples: Sequence[Sample], now: datetime) -> Markup:
    """Ready replicas of each role since the command was started."""
    if not samples:
        return Markup("")
    order = revisions(samples)
    legend = [[tag("span", class_=f"mark {charts.hue(name, order)}"), f"{name} "] for name in order]
    rows = [
        [tag("h3", role.name), charts.replicas(role.name, samples, now, role.desired)]
        for role in model.status.roles
    ]
    waited = charts.holds(samples, now)
    return join(
        [
            tag(
                "p",
                "Ready replicas since ",
                when(samples[0].time),
                ", by revision: ",
                legend,
                class_="counts",
            ),
            rows,
            [tag("h3", "held"), waited] if waited else None,
        ]
    )


def _noteworthy(groups: Iterable[GroupStatus]) -> Markup:
    rows = [
        (
            group.name,
            badge(str(group.state)),
            group.ready,
            str(group.attempt),
            group.node_pool or "",
            when(group.since),
            flat(brief(group.last_failure) if group.last_failure else group.reason or ""),
        )
        for group in groups
    ]
    return table(("Replica", "State", "Hosts", "Attempt", "Node pool", "Since", "Last failure"), rows)
