"""What docs/cli.md shows is what the commands print."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.builders import NOW, node_pool
from tests.docs import ROOT
from tests.inference import image
from tests.unit.cli import rolescenes, test_doctor, test_rollout
from tests.unit.cli.scenes import CREATED, LATER, PLAIN, Screen, failed, in_use, running, seen
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli import doctor, planning, rolestatus, rolloutview, status, why
from tpu_operator.cli.checks import examine
from tpu_operator.cli.command import Exit
from tpu_operator.cli.diagnosis import diagnose
from tpu_operator.cli.history import history
from tpu_operator.cli.rolediagnosis import diagnose_inference
from tpu_operator.cli.roletree import role_tree
from tpu_operator.cli.tree import tree
from tpu_operator.core.inference.forecast import of_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.builders import World
    from tests.inference import InferenceWorld
    from tpu_operator.cli.roletree import RoleTree

PAGE = (ROOT / "docs" / "cli.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def _why(world: World) -> list[str]:
    return why.draw(diagnose(seen(world), [], LATER), LATER, PLAIN)


def _doctor() -> list[str]:
    nodes = list(node_pool("pool-a", hosts=3).values())
    facts = replace(test_doctor.HEALTHY, nodes=nodes, groups=frozenset())
    return doctor.draw(examine(facts, NOW), PLAIN)


def _history() -> list[str]:
    world = test_rollout.three()
    found = history(world.inference, world.revisions.values())
    aged = [msgspec.structs.replace(one, created=CREATED) for one in found]
    return rolloutview.draw_history(aged, LATER, PLAIN)


def _plan() -> list[str]:
    world = rolescenes.serving().patch_spec(engine=image("2"))
    return planning.draw(of_snapshot(world.snapshot(), LATER))


def _roles(world: InferenceWorld) -> RoleTree:
    return role_tree(rolescenes.seen(world), LATER)


SCENES: dict[str, Callable[[], list[str]]] = {
    "Phase:     Running": lambda: status.draw(tree(seen(running()), LATER), LATER, PLAIN),
    "CapacityInUse": lambda: _why(in_use()),
    "MaxRestartsReached": lambda: _why(failed()),
    "operator  tpu-operator-a": _doctor,
    "─revision": lambda: rolestatus.draw(_roles(rolescenes.rolling()), LATER, PLAIN),
    "the rollout does not go on": lambda: why.draw(
        diagnose_inference(rolescenes.seen(rolescenes.failing()), [], LATER), LATER, PLAIN
    ),
    "spare slices needed": _plan,
    "SERVES": lambda: rolloutview.draw(_roles(rolescenes.held()), LATER, PLAIN),
    "NUMBER  REVISION": _history,
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
    words = set(re.findall(r"`(rollout \w+|\w+)", table))
    assert {command.name for command in command_line.COMMANDS} <= words
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert codes == set(Exit)
