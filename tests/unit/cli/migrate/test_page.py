"""docs/migrate-from-torch-xla.md shows what `kubectl tpu migrate` prints, and has its table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hack.migration import page
from tests.docs import ROOT
from tests.unit.cli.scenes import Screen
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli.command import Exit
from tpu_operator.cli.migrate.idioms import CHAPTERS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAGE = (ROOT / "docs" / "migrate-from-torch-xla.md").read_text()
BEFORE, AFTER = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
((COMMAND, SHOWN),) = re.findall(
    r"^```console\n\$ kubectl tpu (.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
)


def shown(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(program)
    screen = Screen()
    return command_line.call(COMMAND.split(), screen), screen.text


def test_what_is_found_in_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(BEFORE, tmp_path, monkeypatch) == (Exit.BAD, SHOWN)


def test_nothing_is_left_of_it_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(AFTER, tmp_path, monkeypatch)[0] == Exit.DONE


def test_the_tables_are_those_of_the_command() -> None:
    assert page(PAGE) == PAGE
    assert all(
        f"`{name}`" in PAGE for chapter in CHAPTERS for idiom in chapter.idioms for name in idiom.names
    )
