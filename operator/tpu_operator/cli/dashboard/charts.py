"""Pictures of time, as SVG without a line of style: their colours are classes of the style sheet."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tpu_operator.cli.dashboard.history import Sample, revisions
from tpu_operator.cli.dashboard.markup import Markup, colour, tag
from tpu_operator.cli.text import duration, flat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpu_operator.cli.dashboard.moments import Span

WIDTH: Final = 1000
BAR: Final = 28
"""Height of a bar."""
AREA: Final = 64
"""Height of a role's replicas over time."""
SLIVER: Final = 2.0
"""Least width of what took no time to speak of."""
HUES: Final = 6
"""Classes of revisions, in turn."""


class Scale:
    """Places of times on a picture."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self.start = start
        self.seconds = max(1.0, (end - start) / timedelta(seconds=1))

    def at(self, time: datetime) -> float:
        """Distance from the left."""
        passed = (time - self.start) / timedelta(seconds=1)
        return round(min(WIDTH, max(0.0, passed / self.seconds * WIDTH)), 1)


def timeline(spans: Sequence[Span]) -> Markup:
    """A job's attempts as one bar, with a line above it that numbers them."""
    if not spans:
        return Markup("")
    scale = Scale(spans[0].start, spans[-1].end)
    bars = [_bar(span, scale) for span in spans]
    firsts = [span for i, span in enumerate(spans) if i == 0 or spans[i - 1].attempt != span.attempt]
    numbers = [
        tag("text", str(span.attempt), x=scale.at(span.start) + 2, y=12, class_="label") for span in firsts
    ]
    return _picture("timeline", 16 + BAR, [*numbers, *bars], _said(spans))


def _bar(span: Span, scale: Scale) -> Markup:
    start, end = scale.at(span.start), scale.at(span.end)
    lasted = duration((span.end - span.start) / timedelta(seconds=1))
    why = f" ({flat(span.reason)})" if span.reason else ""
    title = tag("title", f"attempt {span.attempt}: {span.state} for {lasted}{why}")
    return tag(
        "rect",
        title,
        x=start,
        y=16,
        width=round(max(SLIVER, end - start), 1),
        height=BAR,
        class_=f"bar {colour(span.state)}",
    )


def _said(spans: Sequence[Span]) -> str:
    """What the picture shows, for those who do not see it."""
    return "; ".join(f"attempt {span.attempt} {span.state}" for span in spans)


def replicas(role: str, samples: Sequence[Sample], now: datetime, desired: int) -> Markup:
    """Ready replicas of a role over time, those of each revision on top of those of the ones before it."""
    if not samples:
        return Markup("")
    scale = Scale(samples[0].time, now)
    most = max([desired, *(sum(one.ready.get(role, {}).values()) for one in samples), 1])
    ends = [*(one.time for one in samples[1:]), now]
    order = revisions(samples)
    bars = [
        bar
        for one, end in zip(samples, ends, strict=True)
        for bar in _stack(one, role, order, (scale.at(one.time), scale.at(end)), most)
    ]
    goal = round(AREA - AREA * desired / most, 1)
    bars.append(tag("line", x1=0, x2=WIDTH, y1=goal, y2=goal, class_="goal"))
    return _picture("area", AREA, bars, f"ready replicas of {role} over time")


def _stack(
    one: Sample, role: str, order: Sequence[str], across: tuple[float, float], most: int
) -> list[Markup]:
    """The ready replicas of each revision during one sample."""
    found: list[Markup] = []
    below = 0
    for revision, count in sorted(one.ready.get(role, {}).items(), key=lambda item: order.index(item[0])):
        below += count
        rect = tag(
            "rect",
            tag("title", f"{revision}: {count} ready since {one.time:%H:%M:%S} UTC"),
            x=across[0],
            y=round(AREA - AREA * below / most, 1),
            width=round(max(0.5, across[1] - across[0]), 1),
            height=round(AREA * count / most, 1),
            class_=f"area {hue(revision, order)}",
        )
        found.append(rect)
    return found


def holds(samples: Sequence[Sample], now: datetime) -> Markup:
    """When the rollout waited, and for which gate."""
    if not any(one.gate for one in samples):
        return Markup("")
    scale = Scale(samples[0].time, now)
    ends = [*(one.time for one in samples[1:]), now]
    bars = [
        tag(
            "rect",
            tag("title", f"{one.gate} since {one.time:%H:%M:%S} UTC"),
            x=scale.at(one.time),
            y=0,
            width=round(max(SLIVER, scale.at(end) - scale.at(one.time)), 1),
            height=BAR / 2,
            class_="bar busy",
        )
        for one, end in zip(samples, ends, strict=True)
        if one.gate
    ]
    return _picture("holds", BAR // 2, bars, "when the rollout waited")


def hue(revision: str, order: Sequence[str]) -> str:
    """Class of a revision: the same wherever it is shown."""
    return f"hue{order.index(revision) % HUES}" if revision in order else "hue-none"


def _picture(kind: str, height: int, parts: Sequence[Markup], label: str) -> Markup:
    return tag(
        "svg",
        parts,
        viewBox=f"0 0 {WIDTH} {height}",
        preserveAspectRatio="none" if kind != "timeline" else None,
        role="img",
        aria_label=label,
        class_=kind,
    )
