"""GRPO with an OpenEnv environment and a rollout engine, as processes of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.kube import wait_for
from tests.systems.rl.programs import SECONDS, Program, Server, example, mean, rewards, sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STEPS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The programs of the example as files."""
    for name, program in example()[0]["data"].items():
        (tmp_path / name).write_text(program)
    return tmp_path


@pytest.fixture
def engine(folder: Path) -> Iterator[Server]:
    made = Server(folder, "engine", "/v1/models")
    yield made
    made.kill()


@pytest.fixture
def train(folder: Path, engine: Server) -> Iterator[Callable[[], Program]]:
    """Starts the trainer, beside an environment and an engine."""
    environment = Server(folder, "environment", "/health")
    started: list[Program] = []

    def start() -> Program:
        variables = {
            "CHECKPOINTS": str(folder / "checkpoints"),
            "ENVIRONMENT": f"http://127.0.0.1:{environment.port}",
            "ROLLOUT": f"127.0.0.1:{engine.port}",
            "STEPS": str(STEPS),
            "DEVICE": "cpu",
        }
        started.append(Program(folder, "train", **variables))
        return started[-1]

    environment.wait_ready()
    engine.wait_ready()
    yield start
    for program in (*started, environment):
        program.kill()


def test_reward_rises_over_a_lost_engine_and_a_killed_trainer(
    folder: Path, engine: Server, train: Callable[[], Program]
) -> None:
    trainer = train()
    wait_for("the trainer takes steps", lambda: 5 in rewards(trainer.log), SECONDS)
    engine.kill()
    successor = Server(folder, "engine", "/v1/models", engine.port)
    try:
        wait_for("there is a checkpoint", (folder / "checkpoints/checkpoint-20").is_dir, SECONDS)
        wait_for("the trainer goes on", lambda: 22 in rewards(trainer.log), SECONDS)
        trainer.kill()
        before = trainer.log
        assert train().wait() == 0, trainer.log
    finally:
        successor.kill()
    log = trainer.log.removeprefix(before)

    assert "checkpoint-20" in log
    assert list(rewards(log)) == list(range(21, STEPS + 1))
    found = rewards(before) | rewards(log)
    first, last = mean([found[step] for step in range(1, 6)]), mean([found[step] for step in range(36, 41)])
    assert first < 0.5, found
    assert last > 0.85, found

    # All weights for an engine or a trainer that is new, and what has changed for others.
    kinds = [kind for kind, _ in sent(before)]
    assert (kinds[0], kinds.count("full")) == ("full", 2), before
    assert [kind for kind, _ in sent(log)] == ["full"] + ["delta"] * (STEPS - 21)
    (_, everything), *deltas = sent(log)
    assert max(size for _, size in deltas) < everything, log
