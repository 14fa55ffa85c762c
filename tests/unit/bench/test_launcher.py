"""The parts of the launcher's benchmark that need no torch, so that it does not rot between runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import launcher

if TYPE_CHECKING:
    import pytest


def test_what_is_promised_of_memory_holds() -> None:
    python = Path(sys.executable)
    plain = launcher.start("none", python, plain=True)
    with_it = launcher.start("none", python, plain=False)
    assert plain.seconds > 0
    assert 5 < with_it.rss < launcher.LIMITS["memory of a launcher"]
    assert with_it.cpu > 0


def test_all_start_soon_after_the_host_that_comes_last() -> None:
    found = launcher.start("none", Path(sys.executable), plain=False, late=2)
    assert 0 < found.seconds < 10


async def test_a_gate_of_many_hosts() -> None:
    assert 0 < await launcher.gate_of(2, 8) < 60


def test_figures_are_beside_what_is_promised() -> None:
    found = {"torchrun: more seconds": [0.4, 0.5, 1.5], "memory of a launcher": [41.0], "none: plain": [0.1]}
    assert launcher.markdown(found).splitlines() == [
        "|  | median | least | most | limit |  |",
        "| --- | --- | --- | --- | --- | --- |",
        "| torchrun: more seconds | 0.5 s | 0.4 s | 1.5 s | 1 s | kept |",
        "| memory of a launcher | 41 MiB | 41 MiB | 41 MiB | 40 MiB | **over** |",
        "| none: plain | 0.1 s | 0.1 s | 0.1 s |  |  |",
    ]


def test_the_page_keeps_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "launcher.md"
    page.write_text(launcher.PAGE.read_text())
    monkeypatch.setattr(launcher, "run", lambda *_: {"none: plain": [0.25]})
    assert launcher.main(["--output", str(page)]) == 0
    assert "# What the launcher costs" in page.read_text()
    assert "| none: plain | 0.25 s |" in page.read_text()
    assert (tmp_path / "launcher.json").read_text() == '{\n "none: plain": [\n  0.25\n ]\n}\n'
