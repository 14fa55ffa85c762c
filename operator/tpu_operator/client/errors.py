"""What can go wrong: which object, which of its fields, and what to do about it."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tpu_operator.cli.command import CommandError, Exit
from tpu_operator.cli.server import explain
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

FIELD: Final = re.compile(r"\b(?:spec|metadata|status)\.[\w.\[\]]*[\w\]]")
REMEDIES: Final = {
    "AlreadyExists": "choose another name, or delete that object first",
    "Conflict": "somebody else has changed it meanwhile: read it again, and repeat the change",
    "Invalid": "correct the fields that are named; docs/api.md describes each",
    "BadRequest": "correct the fields that are named; docs/api.md describes each",
}
"""What to do about an answer of the API server, by its reason."""
WORDS: Final = {
    "--rank": "ranks",
    "--slice": "slices",
    "--namespace": "namespace=",
    "--kubeconfig": "kubeconfig=",
    "--context": "context=",
}
"""What options of the command line are called here."""


class ClientError(Exception):
    """A request that was not carried out.

    Attributes:
        about: the object, such as "TPUJob team-a/train".
        message: what is wrong with it.
        fields: paths of the fields that the API server objects to, such as "spec.tpu.topology".
        remedy: what to do; empty where the message says so.
    """

    def __init__(self, about: str, message: str, remedy: str = "") -> None:
        super().__init__(f"{about}: {message}" + (f"\n{remedy}" if remedy else ""))
        self.about = about
        self.message = message
        self.fields = tuple(dict.fromkeys(FIELD.findall(message)))
        self.remedy = remedy


class NotFoundError(ClientError):
    """There is no such object, or the cluster does not know its kind."""


class RefusedError(ClientError):
    """The API server has understood the request and said no."""


class UnreachableError(ClientError):
    """The API server does not answer, or there are no credentials for it."""


class WaitTimeoutError(ClientError, TimeoutError):
    """Time is up, and the object is not where it was waited for."""


class OutOfReachError(ClientError):
    """The object can never come to where it was waited for."""


BY_EXIT: Final = {
    Exit.NOT_FOUND: NotFoundError,
    Exit.REFUSED: RefusedError,
    Exit.UNREACHABLE: UnreachableError,
}


@contextmanager
def told(about: str) -> Iterator[None]:
    """Turn what goes wrong inside into a ClientError about an object."""
    try:
        yield
    except ApiError as error:
        raise _error(about, explain(error), REMEDIES.get(error.reason, "")) from error
    except CommandError as error:
        raise _error(about, error) from error


def _error(about: str, error: CommandError, remedy: str = "") -> ClientError:
    kind = BY_EXIT.get(error.code, ClientError)
    return kind(about, _in_python(str(error)), _in_python(remedy or error.advice))


def _in_python(text: str) -> str:
    """A text that was written for the command line."""
    for option, argument in WORDS.items():
        text = text.replace(option, argument)
    return text
