from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import Launcher, reserved_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Launch = Callable[..., Launcher]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts launchers, and ends those that still run after the test."""
    started: list[Launcher] = []

    def start(env: dict[str, str], *command: str, prefix: Sequence[str] = ()) -> Launcher:
        launcher = Launcher(tmp_path / f"launcher-{len(started)}", env, command, prefix)
        started.append(launcher)
        return launcher

    yield start
    for launcher in started:
        launcher.kill()


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as number:
        yield number
