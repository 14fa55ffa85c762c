"""Inquiries, carried out beside decisions."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from tpu_operator.controllers.analyst import AT_ONCE, Analyst
from tpu_operator.core.inquiry import Answer, Answers, Inquiry

if TYPE_CHECKING:
    from tpu_operator.engine.informer import Key

pytestmark = pytest.mark.looptime

KEY = ("default", "qwen")


class Desk:
    """An analyst, whose server takes a second for each inquiry."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told: list[Key] = []
        self.busy = self.busiest = 0
        self.analyst = Analyst(self.told.append, self.ask)

    async def ask(self, inquiry: Inquiry) -> Answers:
        self.asked.append(inquiry.name)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            await asyncio.sleep(1)
        finally:
            self.busy -= 1
        if inquiry.name == "broken":
            raise RuntimeError("boom")
        return Answers(inquiry.name, {"q": Answer(float(len(self.asked)))})


def inquiry(name: str) -> Inquiry:
    return Inquiry(name, "http://prometheus.test", {"q": "up"})


async def test_answers_come_beside_decisions_and_ask_for_another_one() -> None:
    desk = Desk()
    desk.analyst.inquire(KEY, inquiry("1"))
    assert desk.analyst.answers(KEY) is None
    await asyncio.sleep(2)
    assert desk.analyst.answers(KEY) == Answers("1", {"q": Answer(1.0)})
    assert desk.told == [KEY]


async def test_what_is_asked_or_answered_is_not_asked_again() -> None:
    desk = Desk()
    for _ in range(3):
        desk.analyst.inquire(KEY, inquiry("1"))
        desk.analyst.inquire(KEY, None)
        await asyncio.sleep(0.6)
    desk.analyst.inquire(KEY, inquiry("1"))
    await asyncio.sleep(2)
    assert desk.asked == ["1"]


async def test_another_inquiry_takes_the_place_of_one_under_way() -> None:
    desk = Desk()
    desk.analyst.inquire(KEY, inquiry("1"))
    await asyncio.sleep(0.5)
    desk.analyst.inquire(KEY, inquiry("2"))
    await asyncio.sleep(2)
    found = desk.analyst.answers(KEY)
    assert found is not None
    assert (found.name, desk.told) == ("2", [KEY])


async def test_who_is_gone_is_not_asked_about() -> None:
    desk = Desk()
    desk.analyst.inquire(KEY, inquiry("1"))
    await asyncio.sleep(0.5)
    desk.analyst.forget(KEY)
    await asyncio.sleep(2)
    assert (desk.analyst.answers(KEY), desk.told) == (None, [])


async def test_of_many_inquiries_some_are_carried_out_at_a_time() -> None:
    desk = Desk()
    for number in range(3 * AT_ONCE):
        desk.analyst.inquire(("default", str(number)), inquiry("1"))
    await asyncio.sleep(4)
    assert (desk.busiest, len(desk.told)) == (AT_ONCE, 3 * AT_ONCE)


async def test_a_mistake_of_ours_is_logged_and_answered_with_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    with caplog.at_level(logging.ERROR):
        desk.analyst.inquire(KEY, inquiry("broken"))
        await asyncio.sleep(2)
    assert desk.analyst.answers(KEY) == Answers("broken")
    assert desk.told == [KEY]
    assert "default/qwen" in caplog.text
