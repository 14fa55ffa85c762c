"""What docs/agents.md and AGENTS.md tell people and their agents."""

from __future__ import annotations

import json
import re
import shlex
import tomllib

import pytest

from tests.builders import NOW
from tests.docs import ROOT
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli.agent.tools import Toolbox
from tpu_operator.cli.command import Exit, Place
from tpu_operator.cli.diagnosis import Answer

PEOPLE, AGENTS = ((ROOT / path).read_text() for path in ("docs/agents.md", "AGENTS.md"))
BOTH = PEOPLE + AGENTS
LINES = re.findall(r"kubectl[ -]tpu (.+?)(?= \| |`|$)", BOTH, re.MULTILINE)
TOOLS = Toolbox(Place(), lambda: NOW)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", BOTH, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("line", LINES)
def test_every_command_line_can_be_read(line: str) -> None:
    ours, words = command_line.split(shlex.split(line))
    options = command_line.parsers()[0].parse_args(ours)
    assert bool(words) == (options.command == "run")


def test_the_pages_have_command_lines() -> None:
    assert len(LINES) > 20


def test_the_configurations_start_the_server() -> None:
    configured = [
        *(one for block in blocks("json") for one in json.loads(block)["mcpServers"].values()),
        *(one for block in blocks("toml") for one in tomllib.loads(block)["mcp_servers"].values()),
    ]
    assert len(configured) == 2
    for one in configured:
        assert one["command"] == "kubectl-tpu"
        options = command_line.parsers()[0].parse_args(one["args"])
        assert (options.command, options.allow_writes) == ("mcp", False)


def test_every_tool_is_there() -> None:
    table = PEOPLE.partition("| tool | command |\n")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[1:]]
    named = {
        writes: {
            name
            for row in rows
            if ("--allow-writes" in row) == writes
            for name in re.findall(r"`(\w+)`", row)
        }
        for writes in (False, True)
    }
    assert named[False] == {tool.__name__ for tool in TOOLS.reading}
    assert named[True] == {tool.__name__ for tool in TOOLS.writing}


def test_every_exit_code_is_there() -> None:
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", AGENTS, re.MULTILINE)} == set(Exit)


def test_fields_of_why_are_those_that_it_has() -> None:
    named = AGENTS.partition("echoes on other hosts: ")[2].partition(". Follow")[0]
    assert set(re.findall(r"`(\w+)`", named)) == set(Answer.__struct_encode_fields__) - {"since"}
    asked = re.findall(r"kubectl tpu why .* \| jq -r \.(\w+)", PEOPLE)
    assert asked
    assert set(asked) <= set(Answer.__struct_encode_fields__)
