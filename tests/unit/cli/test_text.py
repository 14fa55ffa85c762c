"""Ages, tables, colours and terminals."""

from __future__ import annotations

import json
import os

import pytest

from tests.unit.cli.scenes import COLOURED, PLAIN, Screen
from tpu_operator.cli.text import Cell, Style, clean, clip, duration, flat, table


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (330, "5m30s"),
        (3599, "59m"),
        (3 * 3600 + 720, "3h12m"),
        (25 * 3600, "1d1h"),
        (12 * 86400 + 3600, "12d"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_tables_are_as_wide_as_their_text_colours_or_not() -> None:
    rows: list[list[str | Cell]] = [
        ["A", Cell("STATE", "bold")],
        ["name", Cell("Running", "green")],
        ["x", ""],
    ]
    assert table(rows, PLAIN) == ["A     STATE", "name  Running", "x"]
    assert table(rows, COLOURED)[1] == "name  \x1b[32mRunning\x1b[0m"


def test_only_the_last_column_is_cut() -> None:
    rows = [["long name", "a long text about it"]]
    assert table(rows, Style(width=20)) == ["long name  a long..."]


def test_clip() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdef", 5) == "ab..."


def test_what_others_write_moves_no_cursor() -> None:
    assert clean("a\x1b[31mb\x1b[0m\x07\x1b]0;title") == "ab]0;title"
    assert flat("one\n  two\tthree\r") == "one two three"


@pytest.mark.parametrize(
    ("interactive", "environment", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"CLICOLOR_FORCE": "1"}, True),
        (False, {"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_when_there_are_colours(interactive: bool, environment: dict[str, str], coloured: bool) -> None:
    assert Screen(interactive=interactive, **environment).style.colour is coloured


def test_without_a_terminal_lines_are_not_cut() -> None:
    assert Screen().style.width is None


def test_what_a_stream_cannot_encode_is_replaced() -> None:
    screen = Screen(encoding="ascii")
    assert not screen.style.unicode
    screen.write("└─a\n")
    assert screen.text == "??a\n"


def test_a_redraw_that_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda **_: os.terminal_size((80, 5)))
    screen = Screen(interactive=True)
    screen.redraw([str(i) for i in range(10)])
    assert screen.text.splitlines() == ["\x1b[H\x1b[J0", "1", "2", "... 7 more lines"]


def test_forms_of_an_answer() -> None:
    model = {"b": 1, "a": ["x"]}
    screen = Screen()
    screen.show("json", model, list)
    assert json.loads(screen.text) == model
    screen = Screen()
    screen.show("yaml", model, list)
    assert screen.text == "b: 1\na:\n- x\n"
    screen = Screen()
    screen.show("text", model, lambda: ["one", "two"])
    assert screen.text == "one\ntwo\n"
