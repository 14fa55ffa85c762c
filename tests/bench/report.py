"""Results as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.bench.limits import FLOOR, verdicts
from tests.bench.results import unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.bench.results import Results

BEGIN: Final = "<!-- begin of what `make bench` writes -->"
END: Final = "<!-- end of what `make bench` writes -->"


def markdown(results: Results) -> str:
    """Everything, as the part of the README that is generated."""
    parts = ["## Against the limits", table(_limits(results)), "## Seconds until all hosts are ready"]
    parts += [table(_headline(results))]
    for scenario, rates in _pairs(results):
        parts += [f"### {scenario}, {rates} rates", table(_details(results, scenario, rates))]
    return "\n\n".join(parts) + "\n"


def insert(text: str, generated: str) -> str:
    """Replace the generated part of a document."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{generated}\n{END}{after}"


def _limits(results: Results) -> Iterator[Sequence[str]]:
    yield "scenario", "metric", "limit", "measured", ""
    for verdict in verdicts(results):
        limit = verdict.limit
        measure = "x floor" if limit.of_floor else unit(limit.metric)
        yield (
            limit.scenario,
            limit.metric,
            f"{_number(limit.most)} {measure}",
            _number(verdict.measured),
            "kept" if verdict.kept else "**over**",
        )


def _headline(results: Results) -> Iterator[Sequence[str]]:
    subjects = _subjects(results)
    yield "scenario", "rates", *subjects
    for scenario, rates in _pairs(results):
        times = {each: results.median(scenario, each, rates, "ready") for each in subjects}
        floor = times.get(FLOOR)
        if floor:
            yield scenario, rates, *(_with_ratio(time, floor) for time in times.values())


def _with_ratio(time: float | None, floor: float) -> str:
    return "" if time is None else f"{_number(time)} ({time / floor:.2f} x)"


def _details(results: Results, scenario: str, rates: str) -> Iterator[Sequence[str]]:
    keys = [key for key in results.runs if (key[0], key[2]) == (scenario, rates)]
    subjects = list(dict.fromkeys(key[1] for key in keys))
    yield "metric", "unit", *subjects
    for metric in dict.fromkeys(key[3] for key in keys):
        values = (results.median(scenario, each, rates, metric) for each in subjects)
        yield metric, unit(metric), *("" if value is None else _number(value) for value in values)


def _pairs(results: Results) -> list[tuple[str, str]]:
    return list(dict.fromkeys((key[0], key[2]) for key in results.runs))


def _subjects(results: Results) -> list[str]:
    return list(dict.fromkeys(key[1] for key in results.runs))


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows as Markdown; the first one is the head."""
    head, *body = list(rows)
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
