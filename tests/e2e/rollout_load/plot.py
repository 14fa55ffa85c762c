"""A rollout as a picture: replicas by role and revision over time, and the requests that they served."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from tests.e2e.rollout_load.ledger import Record
    from tests.judge import Sight

BIN_SECONDS: Final = 2.0
LOST: Final = "failed or cut"
COLOURS: Final = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")
LOST_COLOUR: Final = "#d62728"

Steps = list[tuple[float, int]]
"""A number from a second on."""


def revisions(record: Record) -> list[str]:
    """Names of revisions, in the order in which they came."""
    return list(dict.fromkeys(each.revision for sight in record.sights for each in sight.replicas))


def roles(record: Record) -> list[str]:
    """Names of roles."""
    return sorted({each.role for sight in record.sights for each in sight.replicas}, reverse=True)


def counts(sights: Sequence[Sight], role: str, revision: str, *, serving: bool) -> Steps:
    """How many replicas there were.

    Args:
        sights: what was seen.
        role: whose replicas.
        revision: of what revision.
        serving: whether only those count that serve.
    """
    return [
        (
            sight.at,
            sum(
                (each.role, each.revision) == (role, revision) and (each.serving or not serving)
                for each in sight.replicas
            ),
        )
        for sight in sights
    ]


def rates(record: Record) -> dict[str, list[float]]:
    """Requests a second by the revision that has served them, in bins from the first request on."""
    begin = min(each.sent for each in record.requests)
    bins = math.floor((max(each.sent for each in record.requests) - begin) / BIN_SECONDS) + 1
    found: Counter[tuple[str, int]] = Counter()
    for each in record.requests:
        lost = each.failed or each.cut
        name = LOST if lost else record.revisions.get(each.outcome.decoded_by, LOST)
        found[name, math.floor((each.sent - begin) / BIN_SECONDS)] += 1
    named = [*revisions(record), *([LOST] if any(name == LOST for name, _ in found) else [])]
    return {name: [found[name, index] / BIN_SECONDS for index in range(bins)] for name in named}


def draw(record: Record, path: Path) -> None:
    """Draw it as SVG."""
    begin = min(each.sent for each in record.requests)
    names = roles(record)
    figure = Figure(figsize=(9, 1.6 * len(names) + 3.2), layout="constrained")
    *upper, lower = figure.subplots(
        len(names) + 1, sharex=True, height_ratios=[1.0] * len(names) + [1.4]
    ).tolist()
    for axes, role in zip(upper, names, strict=True):
        _replicas(axes, record, role, begin)
    _requests(lower, record)
    for axes in (*upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        for at in record.marks.values():
            axes.axvline(at - begin, color="black", linewidth=0.8, linestyle=":")
    for what, at in record.marks.items():
        upper[0].annotate(what, (at - begin, 1.0), xycoords=("data", "axes fraction"), fontsize="small")
    lower.legend(loc="lower right", fontsize="small", ncols=4)
    lower.set_xlabel("seconds")
    figure.suptitle(f"{record.scenario}: {len(record.requests)} streamed requests")
    with mpl.rc_context({"svg.hashsalt": record.scenario}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _replicas(axes: Axes, record: Record, role: str, begin: float) -> None:
    """Those that serve in full colour, those that start or leave lightly on top of them."""
    end = max(each.ended for each in record.requests) - begin
    base: list[float] = [0.0] * len(record.sights)
    edges = [max(0.0, sight.at - begin) for sight in record.sights] + [end]
    for revision, colour in zip(revisions(record), COLOURS, strict=False):
        serving = counts(record.sights, role, revision, serving=True)
        there = counts(record.sights, role, revision, serving=False)
        for steps, alpha in ((serving, 1.0), (_rest(there, serving), 0.3)):
            top = [low + number for low, (_, number) in zip(base, steps, strict=True)]
            axes.stairs(top, edges, baseline=base, fill=True, color=colour, alpha=alpha, linewidth=0)
            base = top
    axes.set_ylabel(f"{role}\nreplicas")
    axes.set_ylim(0, max([*base, 1.0]) + 0.5)


def _rest(there: Steps, serving: Steps) -> Steps:
    return [(at, number - part) for (at, number), (_, part) in zip(there, serving, strict=True)]


def _requests(axes: Axes, record: Record) -> None:
    found = rates(record)
    bins = len(next(iter(found.values())))
    edges = [index * BIN_SECONDS for index in range(bins + 1)]
    base = [0.0] * bins
    for (name, values), colour in zip(found.items(), COLOURS, strict=False):
        top = [low + value for low, value in zip(base, values, strict=True)]
        shade = LOST_COLOUR if name == LOST else colour
        axes.stairs(top, edges, baseline=base, fill=True, color=shade, label=name, linewidth=0)
        base = top
    axes.set_ylabel("requests\na second")
