"""The parts of the load test that need no cluster: who judges has to be right."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.rollout_load import client, plot
from tests.e2e.rollout_load.__main__ import main, table
from tests.e2e.rollout_load.ledger import Record, Request
from tests.engines import wire
from tests.engines.completions import Outcome
from tests.gateway.picker import NOBODY
from tests.judge import Bounds, Promise, Replica, Sight, judge, replicas
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.kube import Object

WHOLE = Outcome(200, "p-a", "d-a", tokens=4, whole=True)
BOUNDS = Bounds(1, {"prefill": 2, "decode": 2}, {"prefill": 1, "decode": 1})


def request(outcome: Outcome = WHOLE, sent: float = 100.0) -> Request:
    return Request(sent, sent + 1, 4, outcome)


def record(*requests: Request, sights: tuple[Sight, ...] = (), **marks: float) -> Record:
    revisions = {"p-a": "a", "d-a": "a", "p-b": "b", "d-b": "b"}
    return Record("a change", requests, sights, revisions, marks=marks)


def pod(name: str, *, ready: bool = True, serving: str = "true", **metadata: Any) -> Object:
    role, revision, index, host = name.split("-")
    labels = {
        names.LABEL_ROLE: role,
        names.LABEL_REVISION: revision,
        names.LABEL_REPLICA: index,
        names.LABEL_HOST: host,
        **({names.LABEL_LLMD_SERVING: serving} if host == "0" else {}),
    }
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"metadata": {"name": name, "labels": labels, **metadata}, "status": {"conditions": conditions}}


class TestReplicas:
    def test_one_serves_when_all_of_its_hosts_are_ready(self) -> None:
        both = [pod("decode-a-0-0"), pod("decode-a-0-1")]
        assert replicas(both, 2) == (Replica("decode", "a", "0"),)
        assert not replicas(both[:1], 2)[0].serving
        assert not replicas([both[0], pod("decode-a-0-1", ready=False)], 2)[0].serving

    def test_one_does_not_serve_once_routers_leave_it_alone_or_it_is_deleted(self) -> None:
        assert not replicas([pod("decode-a-0-0", serving="false")], 1)[0].serving
        going = pod("decode-a-0-0", deletionTimestamp="2026-11-30T12:00:00Z")
        assert replicas([going], 1) == (Replica("decode", "a", "0", serving=False, kept=False),)


class TestPromises:
    A = (Replica("decode", "a", "0"), Replica("prefill", "a", "0"))
    B = (Replica("decode", "b", "0"), Replica("prefill", "b", "0"))

    @pytest.mark.parametrize(
        ("there", "broken"),
        [
            (A, set()),
            (A + B, set()),
            ((*A, Replica("decode", "a", "1", serving=False)), set()),
            ((*A, *B, Replica("decode", "b", "1", serving=False)), {Promise.BUDGET}),
            (A[:1], {Promise.FLOOR, Promise.SERVABLE}),
            ((), {Promise.FLOOR, Promise.SERVABLE}),
            ((A[0], B[1]), {Promise.SERVABLE}),
            ((A[0], replace(A[1], serving=False)), {Promise.FLOOR, Promise.SERVABLE}),
        ],
    )
    def test_each_is_judged(self, there: tuple[Replica, ...], broken: set[Promise]) -> None:
        assert {each.promise for each in judge(there, BOUNDS)} == broken

    def test_where_nothing_has_to_serve_only_the_budget_is_judged(self) -> None:
        assert not list(judge((), Bounds(1, {"decode": 1}, {})))


class TestLedger:
    def test_what_is_served_is_neither_failed_nor_cut(self) -> None:
        found = record(request())
        assert not any((found.failed, found.cut, found.across, found.below, found.over))
        assert found.served() == {"a": 1}

    @pytest.mark.parametrize("status", [0, 502, 503])
    def test_no_answer_and_an_error_are_failures_and_nothing_else(self, status: int) -> None:
        found = record(request(Outcome(status, text="no")))
        assert len(found.failed) == 1
        assert not any((found.cut, found.across, found.served()))

    @pytest.mark.parametrize("change", [{"whole": False}, {"tokens": 3}])
    def test_a_stream_that_ends_early_is_cut(self, change: dict[str, Any]) -> None:
        assert len(record(request(replace(WHOLE, **change))).cut) == 1

    @pytest.mark.parametrize("pods", [("p-b", "d-a"), ("p-a", "d-b"), ("", "d-a"), ("p-x", "d-x")])
    def test_two_revisions_and_pods_that_nobody_knows_are_across(self, pods: tuple[str, str]) -> None:
        prefilled, decoded = pods
        outcome = replace(WHOLE, prefilled_by=prefilled, decoded_by=decoded)
        assert bool(record(request(outcome)).across) == (prefilled != decoded)

    def test_instants_are_counted_by_what_they_break(self) -> None:
        def sight(*there: Replica) -> Sight:
            return Sight(100.0, there, tuple(judge(there, BOUNDS)))

        over = [*TestPromises.A, *TestPromises.B, Replica("decode", "b", "1")]
        found = record(sights=(sight(*TestPromises.A), sight(), sight(*over)))
        assert (len(found.below), len(found.over)) == (1, 1)

    def test_pc05_a_role_that_stays_alone_is_seen(self) -> None:
        both, one = TestPromises.A, (TestPromises.A[0], replace(TestPromises.A[1], kept=False))
        none = tuple(replace(each, kept=False) for each in both)
        quick = [Sight(1.0, both), Sight(2.0, one), Sight(3.0, none), Sight(60.0, ())]
        assert not record(sights=tuple(quick)).alone
        assert record(sights=(quick[0], quick[1], *quick[3:])).alone == [quick[1]]
        # One that grows gets its roles as there is room.
        assert not record(sights=(quick[1], *quick[3:])).alone

    def test_a_record_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        broken = tuple(judge((), BOUNDS))
        sights = (Sight(100.0, TestPromises.A), Sight(101.0, (), broken))
        made = record(request(replace(WHOLE, sent_to=("10.0.0.1:8000",))), sights=sights, done=102.0)
        made.save(tmp_path / "there" / "record.json")
        assert Record.load(tmp_path / "there" / "record.json") == made


class TestReport:
    RECORD = record(
        request(sent=100.0),
        request(replace(WHOLE, decoded_by="d-b", prefilled_by="p-b"), sent=101.0),
        request(Outcome(503), sent=103.0),
        sights=(Sight(99.0, TestPromises.A), Sight(102.0, (*TestPromises.A, *TestPromises.B))),
        change=101.0,
        rolled=103.5,
    )

    def test_replicas_and_rates_follow_time(self) -> None:
        assert plot.revisions(self.RECORD) == ["a", "b"]
        assert plot.counts(self.RECORD.sights, "decode", "b", serving=True) == [(99.0, 0), (102.0, 1)]
        assert plot.rates(self.RECORD) == {"a": [0.5, 0.0], "b": [0.5, 0.0], plot.LOST: [0.0, 0.5]}

    def test_the_table_has_a_row_for_each_scenario(self) -> None:
        assert table([self.RECORD]).splitlines()[2:] == ["| a change | 3 | 1 | 0 | 0 | 0 | 0 | 0 | 2 |"]

    def test_the_command_draws_the_same_picture_each_time(self, tmp_path: Path) -> None:
        self.RECORD.save(tmp_path / "a-change.json")
        pictures = [tmp_path / "one.svg", tmp_path / "other.svg"]
        for picture in pictures:
            main([f"--records={tmp_path}", "--scenario=a-change", f"--picture={picture}"])
        drawn = [picture.read_bytes() for picture in pictures]
        assert drawn[0] == drawn[1]
        assert b"</svg>" in drawn[0]


class Gateway:
    """Answers as a gateway does."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.asked = 0

    async def handle(self, _: wire.Request, reply: wire.Reply) -> None:
        self.asked += 1
        if self.texts and (text := self.texts.pop(0)):
            await reply.whole(
                503, text.encode(), {"x-chosen-decoder": "10.0.0.1:8000", "x-chosen-prefiller": "-"}
            )
            return
        await reply.begin(200, {"x-decoded-by": "d-a", "x-prefilled-by": "p-a"})
        for _token in range(4):
            await reply.chunk(b'data: {"text": "t"}\n\n')
        await reply.chunk(b"data: [DONE]\n\n")
        await reply.end()

    @asynccontextmanager
    async def listens(self) -> AsyncIterator[str]:
        """Its address, at which nobody is any more after that."""
        server = wire.Server(self.handle)
        yield f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        await server.stop(5)


class TestClient:
    async def test_a_stream_that_comes_to_its_end_is_whole(self) -> None:
        async with Gateway().listens() as address:
            found = await client.ask(address, 4)
        assert not any((found.failed, found.cut, found.again))
        assert found.outcome.decoded_by == "d-a"

    async def test_an_error_is_final_and_says_who_was_asked(self) -> None:
        gateway = Gateway("upstream connect error")
        async with gateway.listens() as address:
            found = await client.ask(address, 4)
        assert (found.outcome.status, gateway.asked) == (503, 1)
        assert found.outcome.sent_to == ("10.0.0.1:8000",)

    async def test_what_no_engine_was_asked_for_is_sent_again_and_counted(self) -> None:
        gateway = Gateway(f"error: {NOBODY} for serving the request")
        async with gateway.listens() as address:
            found = await client.ask(address, 4)
        assert (found.outcome.status, found.again, gateway.asked) == (200, 1, 2)

    async def test_nobody_there_is_a_failure(self) -> None:
        async with Gateway().listens() as address:
            pass
        assert (await client.ask(address, 4)).outcome.status == 0

    async def test_it_stops_after_so_many(self) -> None:
        told: list[Request] = []
        async with Gateway().listens() as address:
            given = Namespace(address=address, rate=1000.0, tokens=4, most=5, seconds=60.0)
            await client.run(given, asyncio.Event(), told.append)
        assert len(told) == 5

    async def test_it_stops_when_it_is_told_and_ends_what_is_open(self) -> None:
        told: list[Request] = []
        stop = asyncio.Event()

        def enough(request: Request) -> None:
            told.append(request)
            stop.set()

        async with Gateway().listens() as address:
            given = Namespace(address=address, rate=20.0, tokens=4, most=10_000, seconds=60.0)
            await asyncio.wait_for(client.run(given, stop, enough), 30)
        assert 1 <= len(told) < 10_000
        assert not any(each.failed or each.cut for each in told)
