"""Any other server that speaks OpenAI's API: its command is the user's, and so are all of its flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_operator.core.inference.engines.run import Run

if TYPE_CHECKING:
    from tpu_operator.core.inference.engines.pod import Task


def run(task: Task) -> Run:
    """How one host runs it: every host the same, told apart by the variables of contract A3."""
    if not task.engine.command:
        problem = (
            "spec.engine.command is empty: name the program of a custom engine, "
            "the launcher starts it and the image's entrypoint is not used"
        )
        return Run([], problems=(problem,))
    return Run([*task.engine.command, *task.user_args])
