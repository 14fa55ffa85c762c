"""`kubectl tpu run`: the job that a command line means."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.unit.cli.scenes import Screen
from tpu_operator.api import TPUJob
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli.command import CommandError, Exit
from tpu_operator.cli.run import manifest

TPU = ["--accelerator", "v5e", "--topology", "4x4"]


def made(*arguments: str) -> dict[str, Any]:
    """The manifest for a command line."""
    ours, words = command_line.split(arguments)
    return manifest(command_line.parsers()[1]["run"].parse_args(ours), words)


def test_the_smallest_job() -> None:
    assert made("hello", *TPU, "--", "python", "train.py", "--", "-x") == {
        "apiVersion": "tpu-operator.dev/v1alpha1",
        "kind": "TPUJob",
        "metadata": {"name": "hello"},
        "spec": {
            "tpu": {"accelerator": "v5e", "topology": "4x4"},
            "run": {"command": ["python", "train.py", "--", "-x"]},
        },
    }


def test_without_a_name_the_server_makes_one_up() -> None:
    assert made(*TPU, "--", "true")["metadata"] == {"generateName": "run-"}


def test_every_option_is_a_field() -> None:
    body = made(
        "big",
        "--accelerator=v6e",
        "--topology=2x4",
        "--chips-per-host=4",
        "--slices=2",
        "--spare-slices=1",
        "--reservation=ours",
        "--node-pool=pool-a",
        "--image=my/image:1",
        "--launcher=jax",
        "--processes-per-host=4",
        "-e",
        "A=1",
        "--env=B=x=y",
        "--working-dir=/app",
        "--preflight",
        "--max-restarts=5",
        "--in-place",
        "--queue=team",
        "--priority-class=high",
        "--deadline=12h",
        "--ttl=1d",
        "--suspend",
        "--",
        "true",
    )
    assert body["spec"] == {
        "tpu": {
            "accelerator": "v6e",
            "topology": "2x4",
            "chipsPerHost": 4,
            "slices": 2,
            "spareSlices": 1,
            "capacity": {"reservation": "ours", "nodePool": "pool-a"},
        },
        "run": {
            "image": "my/image:1",
            "command": ["true"],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "x=y"}],
            "workingDir": "/app",
            "launcher": "jax",
            "processesPerHost": 4,
            "preflight": True,
        },
        "failurePolicy": {"maxRestarts": 5, "restartStrategy": "InPlace"},
        "scheduling": {"queueName": "team", "priorityClassName": "high"},
        "activeDeadlineSeconds": 43200,
        "ttlSecondsAfterFinished": 86400,
        "suspend": True,
    }
    assert TPUJob.parse(body).spec.tpu.slices == 2


def test_no_restarts_at_all_is_not_the_default() -> None:
    assert made(*TPU, "--max-restarts=0", "--", "true")["spec"]["failurePolicy"] == {"maxRestarts": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--accelerator", "v5e", "--topology", "3x3", "--", "true"],
            "--topology: '3x3' does not exist on v5e",
        ),
        (
            ["--accelerator", "v9", "--topology", "4x4", "--", "true"],
            "--accelerator: 'v9' is unknown.*--chips-per-host",
        ),
        (
            ["--accelerator", "v5e", "--topology", "2x4", "--", "true"],
            "--chips-per-host: 2x4 on v5e is ambiguous",
        ),
        ([*TPU], "there is nothing to run"),
    ],
)
def test_what_cannot_be(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as error:
        made(*arguments)
    assert error.value.code is Exit.USAGE
    assert error.value.advice


def test_a_dry_run_needs_no_cluster() -> None:
    screen = Screen()
    arguments = ["run", "hello", *TPU, "-n", "team-a", "--dry-run", "-o", "yaml", "--", "python", "train.py"]
    assert command_line.call(arguments, screen) == 0
    body = yaml.safe_load(screen.text)
    assert body["metadata"] == {"name": "hello", "namespace": "team-a"}
    assert list(body) == ["apiVersion", "kind", "metadata", "spec"]
    screen = Screen()
    assert command_line.call(["run", "hello", *TPU, "--dry-run", "--", "true"], screen) == 0
    assert screen.text == "tpujob/hello created (dry run): 1 slice of 4 hosts with 4 chips\n"
    screen = Screen()
    assert command_line.call(["run", "hello", *TPU, "--dry-run", "-o", "name", "--", "true"], screen) == 0
    assert screen.text == "tpujob.tpu-operator.dev/hello\n"
