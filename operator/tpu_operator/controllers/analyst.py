"""Asks metrics servers what decisions want to know: beside the decisions, which wait for nobody."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from tpu_operator.core.inquiry import Answers
from tpu_operator.engine import prometheus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tpu_operator.core.inquiry import Inquiry
    from tpu_operator.engine.informer import Key

log = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""Inquiries that are under way at a time, over all objects."""


class Analyst:
    """Carries inquiries out, and keeps the last answers about each object.

    Args:
        answered: called with the key of an object about which there are new answers.
        ask: carries one inquiry out.
    """

    def __init__(
        self,
        answered: Callable[[Key], None],
        ask: Callable[[Inquiry], Awaitable[Answers]] = prometheus.ask,
    ) -> None:
        self._answered = answered
        self._ask = ask
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._answers: dict[Key, Answers] = {}
        self._asking: dict[Key, tuple[str, asyncio.Task[None]]] = {}

    def answers(self, key: Key) -> Answers | None:
        """The last answers about an object."""
        return self._answers.get(key)

    def inquire(self, key: Key, inquiry: Inquiry | None) -> None:
        """Ask what a decision about an object wants to know, unless that is asked or answered already."""
        if inquiry is None:
            return
        name, task = self._asking.get(key, ("", None))
        known = self._answers.get(key)
        if inquiry.name == name or (known is not None and known.name == inquiry.name):
            return
        if task is not None:
            task.cancel()
        self._asking[key] = inquiry.name, asyncio.create_task(self._carry_out(key, inquiry))

    def forget(self, key: Key) -> None:
        """An object is gone."""
        self._answers.pop(key, None)
        _, task = self._asking.pop(key, ("", None))
        if task is not None:
            task.cancel()

    async def _carry_out(self, key: Key, inquiry: Inquiry) -> None:
        try:
            async with self._turn:
                answers = await self._ask(inquiry)
        except Exception:
            # Of an inquiry without answers the decision says so, and asks again when its time has come.
            log.exception("%s/%s: the queries of its canary could not be asked", *key)
            answers = Answers(inquiry.name)
        self._answers[key] = answers
        del self._asking[key]
        self._answered(key)
