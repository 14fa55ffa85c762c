"""What docs/cli.md shows is what the commands print."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.builders import NOW, node_pool
from tests.docs import ROOT
from tests.unit.cli import test_doctor
from tests.unit.cli.scenes import LATER, PLAIN, Screen, failed, in_use, running, seen
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli import doctor, status, why
from tpu_operator.cli.checks import examine
from tpu_operator.cli.command import Exit
from tpu_operator.cli.diagnosis import diagnose
from tpu_operator.cli.tree import tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.builders import World

PAGE = (ROOT / "docs" / "cli.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def _why(world: World) -> list[str]:
    return why.draw(diagnose(seen(world), [], LATER), LATER, PLAIN)


def _doctor() -> list[str]:
    nodes = list(node_pool("pool-a", hosts=3).values())
    facts = replace(test_doctor.HEALTHY, nodes=nodes, groups=frozenset())
    return doctor.draw(examine(facts, NOW), PLAIN)


SCENES: dict[str, Callable[[], list[str]]] = {
    "Phase:     Running": lambda: status.draw(tree(seen(running()), LATER), LATER, PLAIN),
    "CapacityInUse": lambda: _why(in_use()),
    "MaxRestartsReached": lambda: _why(failed()),
    "operator  tpu-operator-a": _doctor,
}
"""What is shown, by a part of it."""


@pytest.mark.parametrize("part", SCENES)
def test_what_is_shown_of_jobs_and_clusters(part: str) -> None:
    (block,) = [block for block in BLOCKS if part in block]
    assert block.partition("\n")[2] == "".join(f"{line}\n" for line in SCENES[part]())


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if "--dry-run" in block or "tpu topologies" in block]
)
def test_what_is_shown_without_a_cluster(block: str) -> None:
    command, _, shown = block.partition("\n")
    screen = Screen()
    assert command_line.call(command.removeprefix("$ kubectl tpu ").split(), screen) == 0
    assert screen.text == shown


@pytest.mark.parametrize("line", re.findall(r"^\$ kubectl tpu (.*)$", PAGE, re.MULTILINE))
def test_every_command_line_can_be_read(line: str) -> None:
    ours, _ = command_line.split(line.partition(" || ")[0].split())
    assert command_line.parsers()[0].parse_args(ours)


def test_every_command_and_every_exit_code_is_there() -> None:
    table = PAGE.partition("\n## Commands\n")[2].partition("\n## ")[0]
    words = set(re.findall(r"`(\w+)", table))
    assert {command.name for command in command_line.COMMANDS} <= words
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert codes == set(Exit)
