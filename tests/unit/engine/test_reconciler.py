"""The reconciler and the applier, beside a server that does as the test says; on virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.engine.scripted import KEY, Call, Kind, Scripted, pod, reconcile
from tpu_operator.core.plan import Delete, Plan, Sighting
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    from tpu_operator.engine.queue import WorkQueue

pytestmark = pytest.mark.looptime

WEBHOOK = "failed calling webhook: connection refused"


async def fine(call: Call) -> bytes | None:
    return None


def fails_with(status: int, until: float = float("inf"), method: str = "POST") -> Scripted:
    """A server that does not write pods for some time."""

    async def answer(call: Call) -> bytes | None:
        if call.at < until and call.method == method and "/pods" in call.path:
            raise ApiError(status, "", WEBHOOK)
        return None

    return Scripted(answer)


def one_pod(key: tuple[str, str], refusal: str) -> Plan:
    """Wants a pod, and says what keeps it from being made."""
    return Plan(creates=(pod(),), status={"message": refusal})


class TestNamespaces:
    @pytest.mark.parametrize("objects", [30, 400])
    async def test_a_webhook_that_hangs_in_one_namespace_leaves_others_alone(self, objects: int) -> None:
        async def answer(call: Call) -> bytes | None:
            if "/hangs/pods" in call.path:
                await asyncio.sleep(3600)
            return None

        keys = [("hangs", str(number)) for number in range(objects)]
        kind = Kind(lambda key, _: Plan(creates=(pod(key[0]),)), uids=dict.fromkeys([*keys, KEY], "1"))
        server = Scripted(answer)
        await reconcile(kind, server, seconds=20)
        assert server.made("pods")[0].at < 0.1

    async def test_writes_of_a_namespace_are_limited(self) -> None:
        flying = most = 0

        async def answer(call: Call) -> bytes | None:
            nonlocal flying, most
            flying += "/pods" in call.path
            most = max(most, flying)
            await asyncio.sleep(1)
            flying -= "/pods" in call.path
            return None

        keys = [(KEY[0], str(number)) for number in range(100)]
        gang = tuple(pod(name=str(number)) for number in range(100))
        await reconcile(Kind(lambda *_: Plan(creates=gang), dict.fromkeys(keys, "1")), Scripted(answer), 30)
        assert most == 48


class TestTrouble:
    async def test_the_status_is_written_although_a_pod_cannot_be_made(self) -> None:
        server = fails_with(500)
        await reconcile(Kind(one_pod), server, seconds=1)
        assert server.statuses()[0] == {"message": ""}

    async def test_pods_go_and_come_although_one_cannot_be_changed(self) -> None:
        server = fails_with(403, method="PATCH")
        seen = pod()
        seen["metadata"]["uid"] = "1"
        plan = Plan(applies=(seen,), deletes=(Delete("Pod", *KEY, "1"),), creates=(pod(name="b"),))
        await reconcile(Kind(lambda *_: plan), server, seconds=1)
        methods = [call.method for call in server.calls if "/pods" in call.path]
        assert methods[:3] == ["PATCH", "DELETE", "POST"]

    async def test_what_needs_a_child_that_is_refused_is_not_made(self) -> None:
        server = fails_with(403)
        plan = Plan(creates=(pod(), pod() | {"kind": "Service"}))
        await reconcile(Kind(lambda *_: plan), server, seconds=1)
        assert server.made("services") == []

    async def test_a_pod_that_may_not_be_deleted_keeps_no_other(self) -> None:
        """A webhook can protect one of them."""

        async def answer(call: Call) -> bytes | None:
            if call.method == "DELETE" and call.path.endswith("/pods/train-0-0"):
                raise ApiError(403, "Forbidden", "train-0-0 is protected")
            return None

        server, shown = Scripted(answer), set[str]()
        deletes = tuple(Delete("Pod", KEY[0], f"train-0-{host}", "") for host in range(20))

        def decide(_: tuple[str, str], refusal: str) -> Plan:
            shown.add(refusal)
            return Plan(deletes=deletes, creates=(pod(),), status={"message": refusal})

        await reconcile(Kind(decide), server, seconds=3)
        asked = {call.path.rpartition("/")[2] for call in server.calls if call.method == "DELETE"}
        assert asked == {delete.name for delete in deletes}
        assert shown == {"", "train-0-0 is protected"}
        assert server.made("pods")

    async def test_what_goes_wrong_for_five_seconds_is_shown_until_it_works(self) -> None:
        server = fails_with(500, until=20)
        shown: list[tuple[float, str]] = []

        def decide(key: tuple[str, str], refusal: str) -> Plan:
            shown.append((asyncio.get_running_loop().time(), refusal))
            return one_pod(key, refusal)

        await reconcile(Kind(decide), server, seconds=60)
        assert min(at for at, refusal in shown if refusal) < 12
        assert all(not refusal for at, refusal in shown if at < 5)
        assert {refusal for at, refusal in shown if 9 < at < 20} == {WEBHOOK}
        assert shown[-1][1] == ""
        assert len(server.made("pods")) < 15

    @pytest.mark.parametrize("status", [404, 409])
    async def test_changes_at_the_same_time_are_no_trouble(self, status: int) -> None:
        shown: list[str] = []

        def decide(key: tuple[str, str], refusal: str) -> Plan:
            shown.append(refusal)
            return one_pod(key, refusal)

        await reconcile(Kind(decide), fails_with(status), seconds=25)
        assert set(shown) == {""}

    @pytest.mark.parametrize("status", [404, 409, 0])
    async def test_what_another_try_should_mend_and_does_not_is_shown_later(self, status: int) -> None:
        """Webhooks refuse with any code, and some networks lose all requests of some size."""
        server = fails_with(status, until=100)
        shown: list[tuple[float, str]] = []

        def decide(key: tuple[str, str], refusal: str) -> Plan:
            shown.append((asyncio.get_running_loop().time(), refusal))
            return one_pod(key, refusal)

        await reconcile(Kind(decide), server, seconds=200)
        assert all(not refusal for at, refusal in shown if at < 30)
        assert {"message": WEBHOOK} in server.statuses()
        assert server.statuses()[-1] == {"message": ""}

    @pytest.mark.parametrize(("kind", "plural"), [("Service", "services"), ("Pod", "pods")])
    async def test_what_is_ours_and_was_taken_out_of_our_sight_comes_back(
        self, kind: str, plural: str
    ) -> None:
        wanted = pod() | {"kind": kind}
        wanted["metadata"] |= {"labels": {"tpu-operator.dev/job": "train", "other": "label"}}

        async def answer(call: Call) -> bytes | None:
            if call.method == "POST":
                raise ApiError(409, "AlreadyExists", "there is one")
            if call.method == "GET":
                return json.dumps(pod()).encode()
            return None

        server = Scripted(answer)
        await reconcile(Kind(lambda *_: Plan(creates=(wanted,))), server, seconds=1)
        (repair,) = [call for call in server.calls if call.method == "PATCH"]
        assert repair.path.endswith(f"/{plural}/train-0-0")
        assert repair.body["metadata"]["labels"] == {"tpu-operator.dev/job": "train"}

    @pytest.mark.parametrize(("owner", "writes"), [("ours", 1), ("theirs", 0), ("", 0)])
    async def test_what_belongs_to_others_is_not_taken_over_by_an_apply(
        self, owner: str, writes: int
    ) -> None:
        """It may lack the labels by which we see things."""
        wanted = pod() | {"kind": "ServiceAccount"}
        wanted["metadata"] |= {"ownerReferences": [{"kind": "TPUInference", "name": "qwen", "uid": "ours"}]}
        there = {"metadata": {"name": "train-0-0", "ownerReferences": [{"uid": owner}] if owner else []}}
        refusals: list[str] = []

        def decide(_: tuple[str, str], refusal: str) -> Plan:
            refusals.append(refusal)
            return Plan(applies=(wanted,))

        async def answer(call: Call) -> bytes | None:
            return json.dumps({"items": [there]}).encode() if call.method == "GET" else None

        server = Scripted(answer)
        await reconcile(Kind(decide), server, seconds=1)
        assert len([call for call in server.calls if call.method == "PATCH"]) == writes
        assert ("exists and belongs to something else" in refusals[-1]) is (not writes)

    async def test_what_is_compared_byte_by_byte_is_written_in_one_way_only(self) -> None:
        wanted = pod() | {"apiVersion": "apps/v1", "kind": "ControllerRevision", "data": {"b": 1, "a": "<>"}}

        async def answer(call: Call) -> bytes | None:
            return b'{"items": []}' if call.method == "GET" else None

        server = Scripted(answer)
        await reconcile(Kind(lambda *_: Plan(creates=(wanted,))), server, seconds=1)
        written = [(call.method, call.body) for call in server.calls if call.method != "GET"]
        assert written[0] == ("PATCH", wanted)
        assert not server.made("controllerrevisions")

    async def test_trouble_with_a_deletion_does_not_make_the_operator_spin(self) -> None:
        server = fails_with(500, method="DELETE")
        shown: list[str] = []

        def decide(key: tuple[str, str], refusal: str) -> Plan:
            shown.append(refusal)
            return Plan(deletes=(Delete("Pod", *key, "1"),), status={"message": refusal})

        await reconcile(Kind(decide), server, seconds=120)
        assert 8 < len(shown) < 18
        assert set(shown[-3:]) == {WEBHOOK}

    async def test_without_an_answer_there_is_no_second_request(self) -> None:
        async def answer(call: Call) -> bytes | None:
            raise ApiError(0, "ClientConnectorError", call.path)

        server = Scripted(answer)
        await reconcile(Kind(one_pod), server, seconds=1)
        assert server.statuses() == []

    async def test_a_refused_pod_is_tried_again_with_growing_pauses(self) -> None:
        server = fails_with(403)
        await reconcile(Kind(one_pod), server, seconds=195)
        assert [round(call.at) for call in server.made("pods")] == [0, 10, 30, 70, 130, 190]
        assert server.statuses()[1] == {"message": WEBHOOK}

    async def test_another_spec_is_tried_soon(self) -> None:
        server, kind = fails_with(403), Kind(one_pod)

        async def change_it(queue: WorkQueue) -> None:
            await asyncio.sleep(75)
            kind.generation = 2
            queue.add(KEY)

        await reconcile(kind, server, seconds=100, script=change_it)
        assert [round(call.at) for call in server.made("pods")] == [0, 10, 30, 70, 85, 95]

    async def test_passes_in_between_make_no_pause_longer(self) -> None:
        async def answer(call: Call) -> bytes | None:
            if call.method == "PATCH" and "/pods/" in call.path:
                raise ApiError(403, "", WEBHOOK)
            return b'{"items": []}' if call.method == "GET" else None

        server, plan = Scripted(answer), Plan(applies=(pod(),))

        async def ask_often(queue: WorkQueue) -> None:
            for _ in range(8):
                await asyncio.sleep(1)
                queue.add(KEY)

        await reconcile(Kind(lambda *_: plan), server, seconds=35, script=ask_often)
        tried = {round(call.at) for call in server.calls if "/pods/" in call.path}
        assert {at for at in tried if at > 8} == {10, 30}

    async def test_after_a_pod_that_is_taken_pauses_are_short_again(self) -> None:
        server = fails_with(403, until=35)
        await reconcile(Kind(one_pod), server, seconds=75)
        assert [round(call.at) for call in server.made("pods")][:4] == [0, 10, 30, 70]

    async def test_a_job_that_cannot_be_decided_about_says_so(self) -> None:
        def decide(*_: object) -> Plan:
            raise ValueError("Maximum serialization depth")

        server = Scripted(fine)
        await reconcile(Kind(decide), server, seconds=5)
        (event,) = server.made("events")
        assert "Maximum serialization depth" in event.body["note"]
        assert event.body["reason"] == "ReconcileFailed"


class TestSightings:
    @pytest.mark.parametrize("live", [[], [{"metadata": {"resourceVersion": "8"}}]])
    async def test_nothing_of_a_plan_happens_that_was_made_from_an_old_copy(self, live: list[Any]) -> None:
        async def answer(call: Call) -> bytes | None:
            return json.dumps({"items": live}).encode() if call.method == "GET" else None

        plan = Plan(
            sightings=(Sighting("Node", "", "host", "7"),),
            deletes=(Delete("Pod", *KEY, "1", 0),),
            status={"message": "lost"},
        )
        server = Scripted(answer)
        await reconcile(Kind(lambda *_: plan), server, seconds=10)
        assert {(call.method, call.path) for call in server.calls} == {("GET", "/api/v1/nodes")}
        live[:] = [{"metadata": {"resourceVersion": "7"}}]
        await reconcile(Kind(lambda *_: plan), server, seconds=1)
        assert server.statuses() == [{"message": "lost"}]
        assert [call.method for call in server.calls[-3:]] == ["GET", "DELETE", "PATCH"]


class TestStatus:
    """The copy of an object does not show the status that was written."""

    @staticmethod
    def server(live: str) -> Scripted:
        """A server that writes the status as version 9, and has the object as that version or another."""

        async def answer(call: Call) -> bytes | None:
            if call.path.endswith("/status"):
                return b'{"metadata":{"resourceVersion":"9"}}'
            if call.method == "GET":
                return b'{"items":[{"metadata":{"resourceVersion":"%s"}}]}' % live.encode()
            return None

        return Scripted(answer)

    @staticmethod
    def kind(decided: list[float]) -> Kind:
        def decide(*_: object) -> Plan:
            decided.append(asyncio.get_running_loop().time())
            return Plan(status={"attempt": len(decided)}, requeue_after=1.0)

        return Kind(decide, version="5")

    async def test_nothing_is_decided_from_an_older_one(self) -> None:
        decided: list[float] = []
        kind = self.kind(decided)

        async def catch_up(_: WorkQueue) -> None:
            await asyncio.sleep(60)
            assert len(decided) == 1
            kind.version = "9"

        await reconcile(kind, self.server(live="9"), seconds=65, script=catch_up)
        assert len(decided) > 1

    @pytest.mark.parametrize("status", [0, 500, 504])
    async def test_what_may_have_been_written_is_looked_up(self, status: int) -> None:
        """The server has carried the write out, and its answer was lost."""
        decided: list[float] = []
        kind = self.kind(decided)
        answers = self.server(live="9").answer

        async def lose(call: Call) -> bytes | None:
            if call.path.endswith("/status"):
                raise ApiError(status, "", "lost")
            return await answers(call)

        async def catch_up(_: WorkQueue) -> None:
            await asyncio.sleep(60)
            assert len(decided) == 1
            kind.version = "9"

        await reconcile(kind, Scripted(lose), seconds=65, script=catch_up)
        assert len(decided) > 1

    async def test_what_was_not_written_holds_nothing_up(self) -> None:
        decided: list[float] = []

        async def answer(call: Call) -> bytes | None:
            if call.path.endswith("/status"):
                raise ApiError(0, "", "lost")
            return b'{"items":[{"metadata":{"resourceVersion":"5"}}]}'

        await reconcile(self.kind(decided), Scripted(answer), seconds=10)
        assert len(decided) > 2

    async def test_versions_may_begin_anew(self) -> None:
        decided: list[float] = []
        await reconcile(self.kind(decided), self.server(live="5"), seconds=10)
        assert len(decided) > 5


class TestMemory:
    async def test_a_successor_of_the_same_name_starts_without_a_past(self) -> None:
        """Its pods are not held back because those of the job before it were refused a moment ago."""
        server = fails_with(403, until=4)
        kind = Kind(one_pod)

        async def replace_it(queue: WorkQueue) -> None:
            await asyncio.sleep(5)
            kind.uids[KEY] = "2"
            queue.add(KEY)

        await reconcile(kind, server, seconds=6, script=replace_it)
        assert [round(call.at) for call in server.made("pods")] == [0, 5]
        assert server.statuses()[-1] == {"message": ""}

    async def test_what_is_gone_is_forgotten(self) -> None:
        kind = Kind(lambda *_: Plan(requeue_after=1.0))

        async def remove(_: WorkQueue) -> None:
            await asyncio.sleep(3.5)
            kind.uids.clear()

        await reconcile(kind, Scripted(fine), seconds=30, script=remove)
        assert kind.gone == [KEY]
