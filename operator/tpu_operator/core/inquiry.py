"""What a decision wants to know of a metrics server, and what that has answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Inquiry:
    """Queries to ask, all at the same time.

    Attributes:
        name: tells this inquiry from all others about the object.
        address: URL of the server; one that the installation allows.
        queries: in PromQL, by name.
    """

    name: str
    address: str
    queries: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one query.

    Attributes:
        value: the number; None if there was none.
        problem: why there was none, in words.
    """

    value: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to an inquiry.

    Attributes:
        name: of the inquiry.
        by_query: the answers, by names of queries.
    """

    name: str
    by_query: Mapping[str, Answer] = field(default_factory=dict)
