"""What an adapter decides: the part of a pod that differs from engine to engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpu_operator.api import Launcher


@dataclass(frozen=True, slots=True)
class Port:
    """A port that an engine listens on."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Run:
    """How one host runs an engine.

    Attributes:
        command: the program with all its arguments, the user's included.
        env: variables that the engine needs; those that the user has set stand.
        ports: ports beside that of requests.
        launcher: how the command is started.
        problems: what keeps the engine from being run.
    """

    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    ports: tuple[Port, ...] = ()
    launcher: Launcher = Launcher.NONE
    problems: tuple[str, ...] = ()
