"""The report of what the tests of this directory have recorded: a table, and a picture of one scenario.

python -m tests.e2e.rollout_load --picture docs/img/rollout-under-load.svg
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.rollout_load.ledger import Record
from tests.e2e.rollout_load.plot import draw
from tests.e2e.rollout_load.stage import RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEAD: Final = (
    "scenario",
    "requests",
    "failed",
    "cut",
    "across revisions",
    "below the floor",
    "beyond the budget",
    "sent again",
    "seconds",
)


def row(record: Record) -> tuple[str, ...]:
    """What came of a scenario, as the columns of `HEAD`."""
    found = (record.requests, record.failed, record.cut, record.across, record.below, record.over)
    again = sum(each.again for each in record.requests)
    return (record.scenario, *(f"{len(each):,}" for each in found), f"{again}", f"{record.seconds:.0f}")


def table(records: Iterable[Record]) -> str:
    """A table in Markdown."""
    rows: list[Sequence[str]] = [HEAD, ["---"] * len(HEAD), *map(row, records)]
    return "\n".join("| " + " | ".join(each) + " |" for each in rows)


def main(arguments: Sequence[str]) -> None:
    """Print the table, and draw the picture."""
    parser = argparse.ArgumentParser(prog="rollout_load", description=__doc__)
    parser.add_argument("--records", type=Path, default=RECORDS, help="where the tests have left them")
    parser.add_argument("--scenario", default="template-change", help="the one that is drawn")
    parser.add_argument("--picture", type=Path, help="where to draw it, as SVG")
    given = parser.parse_args(arguments)
    sys.stdout.write(table(map(Record.load, sorted(given.records.glob("*.json")))) + "\n")
    if given.picture:
        given.picture.parent.mkdir(parents=True, exist_ok=True)
        draw(Record.load(given.records / f"{given.scenario}.json"), given.picture)


if __name__ == "__main__":
    main(sys.argv[1:])
