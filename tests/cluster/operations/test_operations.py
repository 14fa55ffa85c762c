"""Changes of specs in sequences: each ends as a fresh job would, or is refused with a reason."""

from __future__ import annotations

import asyncio
import random
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import pytest

from tests.cluster.operations import changes, templates
from tests.cluster.operations.fields import fields, rules
from tests.cluster.operations.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.cluster.conftest import Operator
    from tests.cluster.operations.changes import Change
    from tests.cluster.operations.fields import Field
    from tests.cluster.operations.site import Site

SIDE_BY_SIDE: Final = 12
"""Jobs that go through their sequences at a time."""
LENGTH: Final = 5
"""Changes in a sequence, apart from those that must be refused."""
CREATED: Final = {"metadata.name"}
"""Rules about what cannot change: tests/cluster/api has them."""


def every_change(schema: Mapping[str, Field]) -> list[Change]:
    return [*changes.changes(schema), *templates.changes()]


def test_every_field_is_set_changed_and_refused() -> None:
    schema = fields()
    all_changes = every_change(schema)
    good = {change.path for change in all_changes if change.kind in {"change", "boundary"}}
    bad = {change.path for change in all_changes if change.must_be_refused or change.kind == "blocked"}
    free = {path for path, field in schema.items() if field.kind == "free"}
    strings = {path for path, field in schema.items() if field.kind == "map"}
    assert good == set(schema)
    assert bad | free | strings >= set(schema)


def sequences(schema: Mapping[str, Field], rng: random.Random) -> list[list[Change]]:
    """Every change in one sequence; those that end a job, or show nothing after them, come last in theirs."""
    found = every_change(schema)
    rng.shuffle(found)
    refused = [change for change in found if change.must_be_refused]
    created = [change for change in found if change.path == "managedBy" and change not in refused]
    blocked = [change for change in found if change.kind == "blocked"]
    last = [change for change in found if change.last]
    rest = [
        change for change in found if not any(change in group for group in (refused, created, blocked, last))
    ]
    made = [*_chunks(rest), *_chunks(blocked), *([change] for change in created)]
    made = [[*chunk, end] if end else chunk for chunk, end in zip_longest(made, last)]
    return [_mixed(chunk, refused[index :: len(made)], rng) for index, chunk in enumerate(made)]


def _chunks(items: list[Change]) -> Iterable[list[Change]]:
    return (items[start : start + LENGTH] for start in range(0, len(items), LENGTH))


def _mixed(chunk: list[Change], refused: list[Change], rng: random.Random) -> list[Change]:
    """Refused changes at random places of a sequence, but not after one that must be the last."""
    result = list(chunk)
    for change in refused:
        result.insert(rng.randrange(len(result)), change)
    return result


@pytest.mark.timeout(1200)
async def test_sequences(site: Site, operator: Operator, seed: int) -> None:
    rng = random.Random(seed)
    schema, known = fields(), rules()
    lanes = [
        Lane(site, f"job-{index}", sequence, schema, known, random.Random(rng.random()))
        for index, sequence in enumerate(sequences(schema, rng))
    ]
    free = asyncio.Semaphore(SIDE_BY_SIDE)

    async def run(lane: Lane) -> str:
        async with free:
            try:
                await lane.run()
            except AssertionError as error:
                return str(error)
            return ""

    problems = [problem for problem in await asyncio.gather(*(run(lane) for lane in lanes)) if problem]
    assert not problems, f"seed {seed}: {len(problems)} of {len(lanes)}\n\n" + "\n\n".join(problems)
    accepted = set().union(*(lane.accepted for lane in lanes))
    assert accepted >= set(schema), f"never accepted: {set(schema) - accepted}"
    refusals = [refusal for lane in lanes for refusal in lane.refusals]
    broken = [rule for rule in known if not any(rule.explains(refusal) for refusal in refusals)]
    assert {rule.field for rule in broken} <= CREATED, f"never broken: {broken}"
    assert "Traceback" not in operator.log.read_text(), operator.log
