"""What a pod remembers of its earlier attempts, where restarts happen in place.

A container that is restarted knows nothing of the one before. So the number of the attempt that a launcher
tries for is in a file in a volume of the pod, written before it reports at the gate: no launcher of this pod
asks for the same one again. How the attempts ended here is in it too. Kubernetes only keeps the last
termination message of a container, and whoever reads it may have missed those before.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from tpu_runtime.environment import ATTEMPT, STATE_DIR

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "attempts.json"
KEPT = 4
"""Endings that are remembered: with more, little of a termination message would be left for the log."""


@dataclass
class History:
    """The attempts of a pod.

    Attributes:
        first: the attempt that the pod was made for.
        attempt: the present one, or the least that this host tries for.
        earlier: how earlier ones ended here, with their numbers; those that left no word are not in it.
        path: where this is kept; None if it need not be.
    """

    first: int
    attempt: int
    earlier: list[dict[str, Any]] = field(default_factory=list)
    path: Optional[Path] = None

    def begin(self, attempt: int) -> None:
        """Go on to an attempt."""
        self.attempt = attempt
        self._write()

    def end(self, ending: Mapping[str, Any]) -> None:
        """Remember how the present attempt has ended, for reports of later ones."""
        self.earlier = [*self.earlier, {"attempt": self.attempt, **ending}][-KEPT:]
        self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        with contextlib.suppress(OSError):  # the next launcher then asks its peers, who know better
            draft = self.path.with_suffix(".new")
            draft.write_text(json.dumps({"attempt": self.attempt, "earlier": self.earlier}))
            draft.replace(self.path)


def open_history(variables: Mapping[str, str]) -> History:
    """The history of this pod, with one more attempt begun if there was one before."""
    value = variables.get(ATTEMPT, "")
    first = int(value) if re.fullmatch(r"[0-9]{1,9}", value) else 0
    folder = variables.get(STATE_DIR)
    history = History(first, first, path=Path(folder) / FILE if folder else None)
    if history.path is not None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(history.path.read_text())
            history.attempt, history.earlier = int(kept["attempt"]) + 1, list(kept["earlier"])
        history.begin(max(history.attempt, first))
    return history
