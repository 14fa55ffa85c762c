"""What is said when something goes wrong: object, fields, remedy."""

from __future__ import annotations

import pytest

from tpu_operator.cli.command import CommandError, Exit
from tpu_operator.client import (
    Client,
    ClientError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)
from tpu_operator.client.errors import told
from tpu_operator.engine.client import ApiError

INVALID = (
    'TPUJob.tpu-operator.dev "train" is invalid: [spec.tpu.topology: Invalid value: "3x3": no such slice, '
    "spec.run.env[0].name: Required value]"
)


def raised(error: Exception) -> ClientError:
    with pytest.raises(ClientError) as caught, told("TPUJob team-a/train"):
        raise error
    return caught.value


def test_fields_that_the_api_server_objects_to() -> None:
    error = raised(ApiError(422, "Invalid", INVALID))
    assert type(error) is RefusedError
    assert error.about == "TPUJob team-a/train"
    assert error.fields == ("spec.tpu.topology", "spec.run.env[0].name")
    assert str(error).startswith("TPUJob team-a/train: TPUJob.tpu-operator.dev")
    assert str(error).endswith(f"\n{error.remedy}")


@pytest.mark.parametrize(
    ("answer", "kind", "remedy"),
    [
        (ApiError(409, "AlreadyExists", "train already exists"), RefusedError, "another name"),
        (ApiError(409, "Conflict", "has been modified"), RefusedError, "read it again"),
        (ApiError(403, "Forbidden", "may not"), RefusedError, "ask for the role"),
        (ApiError(404, "NotFound", "no such kind"), NotFoundError, "doctor"),
        (ApiError(0, "Timeout", "no answer"), UnreachableError, "kubectl version"),
    ],
)
def test_each_says_what_to_do(answer: ApiError, kind: type[ClientError], remedy: str) -> None:
    error = raised(answer)
    assert type(error) is kind
    assert remedy in error.remedy


def test_arguments_have_the_names_that_they_have_in_python() -> None:
    error = raised(CommandError("--rank 9: TPUJob train has ranks 0 to 3", Exit.USAGE))
    assert error.message == "ranks 9: TPUJob train has ranks 0 to 3"
    assert type(error) is ClientError


def test_no_way_to_a_cluster() -> None:
    with pytest.raises(UnreachableError, match="context=") as error:
        Client(kubeconfig="/does/not/exist")
    assert error.value.about == "the cluster"
