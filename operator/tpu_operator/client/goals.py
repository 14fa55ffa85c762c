"""What can be waited for: the goals of `kubectl tpu wait`, and what they mean there."""

from __future__ import annotations

from tpu_operator.cli import wait


def check(kind: str, goal: str) -> None:
    """See that an object of a kind can be waited for so.

    Raises:
        ValueError: it cannot; says what can be.
    """
    if goal == wait.DELETED:
        raise ValueError("'deleted': use delete(name, wait=True)")
    if advice := wait.objection(kind, goal):
        raise ValueError(f"{goal!r}: {advice}")
