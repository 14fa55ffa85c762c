"""A job that goes through a sequence of changes, and has to end as a fresh one would."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Final

from tests.cluster.operations.fields import edited
from tests.cluster.operations.likeness import blocked, portrait, settled, uids
from tests.cluster.operations.site import FRESH, JOBS, LANES, SERVICES
from tests.cluster.operations.values import BASE

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from tests.cluster.operations.changes import Change
    from tests.cluster.operations.fields import Field, Object, Rule
    from tests.cluster.operations.site import Look, Site

STARTED: Final = "once the job has started"
"""What the server says of fields that only a suspended job may change."""
CREATE_ONLY: Final = "managedBy"


class Lane:
    """One sequence.

    Args:
        site: where it runs.
        name: of the job.
        sequence: what is changed.
        schema: the fields.
        rules: the rules.
        rng: whether a step waits for the one before.
    """

    def __init__(
        self,
        site: Site,
        name: str,
        sequence: Sequence[Change],
        schema: Mapping[str, Field],
        rules: Sequence[Rule],
        rng: random.Random,
    ) -> None:
        self._site, self._name, self._sequence = site, name, sequence
        self._schema, self._rules, self._rng = schema, rules, rng
        self._spec: Object = {}
        self._job: Object = {}
        self._fresh: Object = {}
        self.log: list[str] = []
        self.accepted: set[str] = set()
        self.refusals: list[str] = []

    def __str__(self) -> str:
        return "\n".join([self._name, *self.log])

    async def run(self) -> None:
        """Go through the sequence, and compare."""
        try:
            await self._begin()
            for change in self._sequence:
                await self._step(change)
            await self._compare()
            await self._leave()
        except AssertionError as error:
            raise AssertionError(f"{error}\nin the sequence {self}") from None

    async def _begin(self) -> None:
        self._spec = BASE
        first = self._sequence[0]
        if first.path == CREATE_ONLY and not first.must_be_refused:
            self._spec = first.of(BASE, self._schema)
        self._job, objection = await self._site.create(LANES, self._name, self._spec)
        if objection:
            self._refused(first, objection)
            self._spec = BASE
            self._job, objection = await self._site.create(LANES, self._name, self._spec)
        assert not objection, objection
        self.accepted.update([CREATE_ONLY] if CREATE_ONLY in self._spec else [])

    async def _step(self, change: Change) -> None:
        if change.first is not None:
            await self._step(change.first)
        self.log.append(f"  {change}")
        if change.kind == "blocked":
            await self._block(change)
            return
        if self._rng.random() < 0.5:
            await self._settle()
        spec = change.of(self._spec, self._schema)
        if change.must_be_refused:
            await self._refuse(change, spec)
        else:
            await self._change(change, spec)

    async def _refuse(self, change: Change, spec: Object) -> None:
        """The server says no, and nothing has changed."""
        job, objection = await self._site.replace(self._name, spec)
        assert objection, f"accepted: {change}: {job.get('spec')}"
        self._refused(change, objection)
        now = await self._site.get(self._name)
        for part in ("spec", "metadata.generation"):
            assert _part(now, part) == _part(self._job, part), f"{part} was changed by {change}"

    def _refused(self, change: Change, objection: str) -> None:
        self.log.append(f"    refused: {objection[:400]}")
        self.refusals.append(objection)
        rules = [rule for rule in self._rules if rule.explains(objection)]
        assert change.is_explained(objection, rules), f"the refusal of {change} does not say why: {objection}"

    async def _change(self, change: Change, spec: Object) -> None:
        """Make a change; one that only a suspended job takes is made while it is suspended."""
        objection = await self._put(spec)
        if objection and STARTED in objection:
            self._refused(change, objection)
            objection = await self._change_suspended(spec)
        if objection:
            self._refused(change, objection)
        else:
            self.accepted.add(change.path)

    async def _change_suspended(self, spec: Object) -> str:
        """Make a change between a suspension and a resumption, as early as the server lets it pass."""
        assert not await self._put(self._spec | {"suspend": True})
        objection = await self._put(spec | {"suspend": True})
        if objection and STARTED in objection:
            await self._settle()
            objection = await self._put(spec | {"suspend": True})
        if not objection:
            assert not await self._put(spec)
        return objection

    async def _put(self, spec: Object) -> str:
        """Put a spec in place of the present one; the server's objection if it does not take it."""
        job, objection = await self._site.replace(self._name, spec)
        if not objection:
            self._job, self._spec = job, spec
        return objection

    async def _suspend(self) -> None:
        """Suspend, and wait until the operator has seen it."""
        assert not await self._put(self._spec | {"suspend": True})
        await self._settle()

    async def _roll(self) -> None:
        """Have new pods made, if the present ones may be from an earlier spec."""
        if self._spec.get("suspend"):
            return
        spec = self._spec
        await self._suspend()
        assert not await self._put(spec)

    async def _block(self, change: Change) -> None:
        """The operator says what is wrong, once pods are to be made; those that are there stay until then."""
        await self._settle()
        before = uids(self._look, self._name)
        suspended = edited(self._spec, change.settings, self._schema) | {"suspend": True}
        spec = {key: value for key, value in suspended.items() if key != "suspend"}
        if not await self._put(spec):
            await self._settle()
            assert before <= uids(self._look, self._name), f"pods are gone by {change}"
        await self._suspend()
        assert not await self._put(spec | {"suspend": True})
        assert not await self._put(spec)
        await self._site.until(
            lambda: self._says(change), lambda: f"{change} to be blocked: {self._condition()}"
        )
        self.accepted.add(change.path)

    def _says(self, change: Change) -> bool:
        found = self._condition()
        right = settled(self._look, self._name, self._job["metadata"]["generation"])
        return bool(
            right
            and found
            and found["reason"] == change.reason
            and all(re.search(says, found["message"]) for says in change.says)
        )

    def _condition(self) -> Object | None:
        return blocked(self._look.jobs.get(self._name, {}))

    @property
    def _look(self) -> Look:
        return self._site.seen[LANES]

    async def _settle(self) -> None:
        await self._site.until(
            lambda: self._at_rest(LANES, self._job),
            lambda: (
                f"{self._name} to settle: {json.dumps(self._look.jobs.get(self._name, {}).get('status'))}"
            ),
        )

    def _at_rest(self, namespace: str, job: Object) -> bool:
        """Whether the operator is done with a job, or the job has ended and was deleted after its time."""
        look = self._site.seen[namespace]
        gone = self._name not in look.jobs and "ttlSecondsAfterFinished" in self._spec
        return gone or settled(look, self._name, job["metadata"]["generation"])

    async def _compare(self) -> None:
        """The job is as a fresh one, and stays so."""
        await self._settle()
        await self._roll()
        self._fresh, objection = await self._site.create(FRESH, self._name, self._spec)
        assert not objection, objection
        await self._site.until(self._alike, self._difference)
        if self._look.jobs.get(self._name, {}).get("status", {}).get("phase") == "Running":
            await self._provoke()
            await self._site.until(self._alike, self._difference)

    async def _provoke(self) -> None:
        """A pass that finds nothing to do writes nothing: the Service's return proves that there was one."""
        before = self._versions()
        (service,) = self._portraits()[1]["services"]
        old = self._service(service)
        await self._site.must("DELETE", f"{SERVICES.format(LANES)}/{service}")
        await self._site.until(
            lambda: self._service(service) not in {"", old}, lambda: f"Service {service} to come back"
        )
        assert self._versions() == before, "something was written without need"

    def _service(self, name: str) -> str:
        """UID of a Service; empty while there is none."""
        found = self._look.services.get(self._name, {}).get(name)
        return found["metadata"]["uid"] if found else ""

    def _alike(self) -> bool:
        mine, fresh = self._portraits()
        return mine == fresh and self._at_rest(LANES, self._job) and self._at_rest(FRESH, self._fresh)

    def _portraits(self) -> tuple[Object, Object]:
        mine, fresh = (portrait(look, self._name) for look in self._site.seen.values())
        # The Service of a job that was suspended stays, and that of an earlier subdomain: they do no harm.
        mine["services"] = {
            name: found for name, found in mine["services"].items() if name in fresh["services"]
        }
        return mine, fresh

    def _versions(self) -> set[str]:
        """Versions of the job and its pods."""
        found = [self._look.jobs.get(self._name, {}), *self._look.pods.get(self._name, {}).values()]
        return {item["metadata"]["resourceVersion"] for item in found if item}

    def _difference(self) -> str:
        mine, fresh = (json.dumps(each, indent=1, sort_keys=True) for each in self._portraits())
        names = ("after the sequence", "fresh")
        lines = difflib.unified_diff(mine.splitlines(), fresh.splitlines(), *names, n=2, lineterm="")
        return "both to be alike:\n" + "\n".join(lines)

    async def _leave(self) -> None:
        """Make room for others."""
        for namespace in (LANES, FRESH):
            await self._site.request("DELETE", f"{JOBS.format(namespace)}/{self._name}")
        await self._site.until(
            lambda: not any(self._name in look.pods for look in self._site.seen.values()),
            lambda: f"the pods of {self._name} to go",
        )


def _part(job: Object, path: str) -> object:
    found: object = job
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found
