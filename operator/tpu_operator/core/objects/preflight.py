"""The init container that looks at a host before the job starts on it (`spec.run.preflight`)."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_operator.core.plan import Manifest

NAME: Final = "tpu-doctor"
_SHARED: Final = (
    "image",
    "imagePullPolicy",
    "env",
    "envFrom",
    "resources",
    "securityContext",
    "volumeMounts",
)
"""What the doctor has from the main container, so that what it sees is what the job will see."""


def preflight(main: Manifest, launch: Sequence[str], interpreter: str) -> Manifest:
    """The init container.

    Args:
        main: the main container, with its environment.
        launch: the command of the launcher in its image.
        interpreter: the first word of the job's command; its packages count, if it is a Python.
    """
    command = [*launch, "doctor", "--preflight", "--python", interpreter]
    # Requests of init containers and of main ones are not added up: it gets the same chips, before them.
    shared = {field: deepcopy(main[field]) for field in _SHARED if field in main}
    return {"name": NAME, "command": command, "terminationMessagePolicy": "FallbackToLogsOnError"} | shared
