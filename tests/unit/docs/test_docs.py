"""What the documentation says of the tests is true, and what it shows is played by one."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.docs import PAGES, ROOT, TEST_ID, examples

if TYPE_CHECKING:
    from pathlib import Path

IDS = sorted({(match[1], match[2]) for page in PAGES for match in TEST_ID.finditer(page.read_text())})
PEERS = ROOT / "docs" / "testing.md"


def definition(file: str, name: str) -> str:
    """Source of a test, by the part of its ID behind the file."""
    source = (ROOT / file).read_text()
    found: ast.AST | None = ast.parse(source)
    for part in name.split("::"):
        children = ast.iter_child_nodes(found) if found is not None else ()
        found = next((child for child in children if getattr(child, "name", "") == part), None)
    return ast.get_source_segment(source, found) or "" if found is not None else ""


@pytest.mark.parametrize(("file", "name"), IDS)
def test_every_test_that_is_named_exists(file: str, name: str) -> None:
    assert (ROOT / file).exists()
    assert "def test_" in definition(file, name)


def test_all_kinds_of_ids_are_found() -> None:
    assert definition("tests/unit/docs/test_docs.py", "test_all_kinds_of_ids_are_found")
    assert not definition("tests/unit/docs/test_docs.py", "test_that_does_not_exist")
    assert len(IDS) > 50


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_programs_of_examples_are_python(path: Path) -> None:
    for body in yaml.safe_load_all(path.read_text()):
        # Those of TPUInferences run no program of ours.
        command = body.get("spec", {}).get("run", {}).get("command", [])
        programs = {name: text for name, text in body.get("data", {}).items() if name.endswith(".py")}
        if command[:2] == ["python", "-c"]:
            programs[path.name] = command[2]
        for name, program in programs.items():
            compile(program, name, "exec")


@pytest.mark.parametrize("title", examples())
def test_every_worked_example_is_played_by_the_test_below_it(title: str) -> None:
    section = examples()[title].text
    ((file, name),) = TEST_ID.findall(section)
    whole = (ROOT / file).read_text()
    assert f'examples()["{title}"]' in definition(file, name) or f'("{title}",' in whole
