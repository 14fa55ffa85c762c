"""TPUJobs and TPUInferences from Python, in notebooks, scripts and pods (docs/sdk.md).

`Client` waits for each answer, `AsyncClient` is for programs with an event loop. Both take and return the
pydantic models of `tpu_operator.api`, from which the CRDs are made.
"""

from tpu_operator.cli.lines import Line
from tpu_operator.client.connection import AsyncClient
from tpu_operator.client.errors import (
    ClientError,
    NotFoundError,
    OutOfReachError,
    RefusedError,
    UnreachableError,
    WaitTimeoutError,
)
from tpu_operator.client.inferences import AsyncInferences
from tpu_operator.client.jobs import AsyncJobs
from tpu_operator.client.sync import Client, Inferences, Jobs

__all__ = [
    "AsyncClient",
    "AsyncInferences",
    "AsyncJobs",
    "Client",
    "ClientError",
    "Inferences",
    "Jobs",
    "Line",
    "NotFoundError",
    "OutOfReachError",
    "RefusedError",
    "UnreachableError",
    "WaitTimeoutError",
]
