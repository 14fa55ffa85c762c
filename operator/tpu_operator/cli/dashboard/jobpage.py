"""The page of a job: what is the matter, its slices and hosts, its attempts, and what has happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpu_operator.cli.dashboard import moments
from tpu_operator.cli.dashboard.charts import timeline
from tpu_operator.cli.dashboard.markup import Child, Markup, badge, colour, join, section, table, tag, when
from tpu_operator.cli.diagnosis import diagnose
from tpu_operator.cli.text import flat
from tpu_operator.cli.tree import tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from tpu_operator.api import Condition
    from tpu_operator.cli.dashboard.moments import Attempt
    from tpu_operator.cli.diagnosis import Answer
    from tpu_operator.cli.follow import Seen
    from tpu_operator.cli.happenings import Happening
    from tpu_operator.cli.hosts import Host
    from tpu_operator.cli.tree import Slice, Tree

ROWS: Final = 100
"""Rows of hosts, attempts and events that are shown."""


def job_page(seen: Seen, events: Sequence[Happening], now: datetime) -> Markup:
    """The page."""
    model = tree(seen, now)
    past = moments.marks(seen.job, events)
    spans = moments.spans(seen.job, past, now)
    return join(
        [
            tag("h1", f"{model.namespace}/{model.name}", " ", badge(model.phase)),
            facts(_facts(model)),
            verdict(diagnose(seen, events, now), model.phase),
            section("Slices and hosts", _grid(model), _noteworthy(model)),
            section("Attempts", timeline(spans), _attempts(moments.attempts(seen.job, past))),
            conditions(seen.job.status.conditions),
            happened(events),
        ]
    )


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Facts with their names; those that are empty are left out."""
    given = [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value]
    return tag("dl", given, class_="facts")


def _facts(model: Tree) -> Iterable[tuple[str, Child]]:
    restarts = model.restarts
    causes = ", ".join(f"{cause} {count}" for cause, count in restarts.by_cause.items())
    yield "Ready", f"{model.ready} hosts" if model.ready else None
    yield "TPU", f"{model.accelerator} {model.topology}" + (f", {model.shape}" if model.shape else "")
    yield "Created", when(model.created)
    yield "Started", when(model.started)
    yield "Ended", when(model.completed)
    yield (
        "Restarts",
        f"{restarts.total}, charged {restarts.counted} of {restarts.limit}"
        + (f" ({causes})" if causes else ""),
    )
    yield "Maintenance", model.maintenance


def verdict(answer: Answer, phase: str) -> Markup:
    """What is the matter with something of a phase, and what to do."""
    since = [" since ", when(answer.since)] if answer.since else None
    return tag(
        "section",
        tag("h2", answer.verdict, since),
        tag("p", answer.cause, class_="cause") if answer.cause else None,
        tag("p", answer.meaning) if answer.meaning else None,
        tag("pre", "\n".join(answer.log)) if answer.log else None,
        listed("What is known", answer.evidence),
        listed("What to do", answer.remedies),
        class_=f"verdict {'good' if answer.well else colour(phase)}",
    )


def listed(title: str, items: Sequence[str]) -> Markup:
    """A list with a title; nothing where it is empty."""
    if not items:
        return Markup("")
    return join([tag("h3", title), tag("ul", [tag("li", flat(item)) for item in items])])


def _grid(model: Tree) -> Markup:
    rows = [_slice(one) for one in model.slices]
    head = tag("div", _name("head", ""), tag("ol", _cell(model.head))) if model.head else None
    return tag("div", rows, head, class_="grid") if rows or head else Markup("")


def _name(text: str, title: str) -> Markup:
    return tag("span", text, class_="name", title=title or None)


def _slice(one: Slice) -> Markup:
    detail = f"attempt {one.attempt}" + (f", node pool {one.node_pool}" if one.node_pool else "")
    cells = tag("ol", [_cell(host) for host in one.hosts]) if one.hosts else None
    return tag("div", _name(f"slice {one.index}", detail), badge(one.state), f" {one.ready} ", cells)


def _cell(host: Host) -> Markup:
    where = f" on {host.node}" if host.node else ""
    detail = f": {flat(host.detail)}" if host.detail else ""
    text = f"{host.pod}: {host.state}{where}{detail}"
    label = "h" if host.host is None else str(host.host)
    return tag("li", label, class_=f"host {colour(host.state)}", title=text, aria_label=text)


def _noteworthy(model: Tree) -> Markup:
    """Hosts of which there is more to say than their place."""
    every = [*(host for one in model.slices for host in one.hosts), *([model.head] if model.head else [])]
    some = [host for host in every if host.detail or host.state not in {"Running", "Succeeded"}]
    rows = [
        (host.pod, badge(host.state), host.node, when(host.since), flat(host.detail)) for host in some[:ROWS]
    ]
    more = tag("p", f"and {len(some) - ROWS} more") if len(some) > ROWS else None
    return join([table(("Host", "State", "Node", "Age", ""), rows), more])


def _attempts(known: Sequence[Attempt]) -> Markup:
    rows = [
        (
            str(one.number),
            when(one.start) or "before what is known",
            when(one.ready),
            when(one.end),
            one.outcome,
        )
        for one in known[:ROWS]
    ]
    return table(("Attempt", "Began", "All hosts ready", "Ended", "By"), rows)


def conditions(found: Iterable[Condition]) -> Markup:
    """Conditions of an object."""
    rows = [
        (one.type, str(one.status), one.reason, when(one.last_transition_time), flat(one.message))
        for one in found
    ]
    return section("Conditions", table(("Type", "Status", "Reason", "Since", "Message"), rows))


def happened(events: Sequence[Happening]) -> Markup:
    """Events, the latest first."""
    rows = [
        (
            when(one.time),
            tag("span", one.type, class_="warning") if one.type == "Warning" else one.type,
            one.about,
            one.reason,
            flat(one.message) + (f" (x{one.count})" if one.count > 1 else ""),
        )
        for one in list(reversed(events))[:ROWS]
    ]
    return section("Events", table(("When", "Type", "Object", "Reason", "Message"), rows))
