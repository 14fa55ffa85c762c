"""What the documentation shows: its YAML, and the worked examples that tests play."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
FAILURES = ROOT / "docs" / "failures.md"
PAGES = sorted([ROOT / "README.md", ROOT / "AGENTS.md", *(ROOT / "docs").rglob("*.md")])
TEST_ID = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")

Object = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A worked example: a section with a spec and, in most, the status that it leads to.

    Attributes:
        title: its heading.
        spec: the part of a job's spec that matters.
        status: the part of its status that is shown.
        text: all of it.
    """

    title: str
    spec: Object
    status: Object
    text: str

    def shown(self, status: Object) -> Object:
        """As much of a status as the example shows of it, for comparison with `status`."""
        shown: Object = _part(self.status, status)
        return shown


def yaml_blocks(page: Path) -> Iterator[tuple[str, Object]]:
    """Each block of YAML of a page, with where it is; blocks of items of lists are indented."""
    for block in re.finditer(r"^( *)```yaml\n(.*?)^\1```$", page.read_text(), re.MULTILINE | re.DOTALL):
        line = page.read_text()[: block.start()].count("\n") + 1
        for document in yaml.safe_load_all(dedent(block[2])):
            yield f"{page.relative_to(ROOT)}:{line}", document


@cache
def examples() -> Mapping[str, Example]:
    """The worked examples, by title."""
    chapter = FAILURES.read_text().split("\n## Worked examples\n")[1].split("\n## ")[0]
    sections = [section.partition("\n") for section in chapter.split("\n### ")[1:]]
    return {title: _example(title, text) for title, _, text in sections}


def _example(title: str, text: str) -> Example:
    found: Object = {}
    for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        found |= yaml.safe_load(block)
    return Example(title, found["spec"], found.get("status", {}), text)


def _part(wanted: Any, actual: Any) -> Any:
    """The fields of an object that another one has too."""
    if isinstance(wanted, dict) and isinstance(actual, dict):
        return {key: _part(value, actual.get(key)) for key, value in wanted.items()}
    if isinstance(wanted, list) and isinstance(actual, list) and len(wanted) == len(actual):
        return [_part(one, other) for one, other in zip(wanted, actual, strict=True)]
    return actual
