"""The tools. Each runs a command as a person would type it, and answers with what that shows as JSON.

What comes from an agent and stands alone in a command line has a pattern, so that no dash begins it.
"""

from __future__ import annotations

from argparse import Namespace as Options
from contextlib import contextmanager
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import msgspec
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from tpu_operator.cli import (
    change,
    doctor,
    explain,
    happenings,
    logs,
    planning,
    stacks,
    status,
    top,
    topologies,
    why,
)
from tpu_operator.cli import rollout as rollouts
from tpu_operator.cli.agent import overview
from tpu_operator.cli.command import Call, CommandError, Exit, Parser
from tpu_operator.cli.server import connect
from tpu_operator.cli.server import explain as explain_error
from tpu_operator.cli.text import Terminal
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from datetime import datetime

    from tpu_operator.cli.command import Command, Place

LONGEST: Final = 60_000
"""Characters of logs in an answer, of which the last are the ones to have."""
COMMANDS: Final = {command.name: command for command in (*change.COMMANDS, *rollouts.COMMANDS)}

Name = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z]+(\.[a-z.-]+)?/)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
        description="name of a TPUJob or TPUInference; tpujob/NAME, tpuinference/NAME say which",
    ),
]
Namespace = Annotated[
    str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", description="empty: that of the server")
]
Word = Annotated[str, Field(pattern=r"^([A-Za-z0-9][\w.\[\]-]*)?$")]
Number = Annotated[int, Field(ge=0)]


class Answer(BaseModel):
    """What a command says."""

    code: int = Field(description="the command's exit code: 0 is good, 1 that the answer is bad")
    answer: Any = Field(description="what `kubectl tpu ... -o json` prints, or text where it has no JSON")


class _Words(Parser):
    """A parser whose errors are for the agent."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong."""
        raise CommandError(message, Exit.USAGE)


class Toolbox:
    """The tools.

    Args:
        place: the cluster, and the namespace where none is said.
        clock: tells the time.
    """

    def __init__(self, place: Place, clock: Callable[[], datetime]) -> None:
        self._place = place
        self._clock = clock

    @property
    def reading(self) -> tuple[Callable[..., Awaitable[Answer]], ...]:
        """Tools that change nothing."""
        return (
            self.list_workloads,
            self.status,
            self.why,
            self.logs,
            self.events,
            self.top,
            self.stacks,
            self.topologies,
            self.explain,
            self.doctor,
            self.rollout_status,
            self.rollout_plan,
            self.rollout_history,
        )

    @property
    def writing(self) -> tuple[Callable[..., Awaitable[Answer]], ...]:
        """Tools that change something."""
        return (
            self.restart,
            self.suspend,
            self.resume,
            self.rollout_pause,
            self.rollout_resume,
            self.rollout_promote,
            self.rollout_rollback,
            self.rollout_restart,
        )

    async def list_workloads(self, namespace: Namespace = "", *, all_namespaces: bool = False) -> Answer:
        """TPUJobs and TPUInferences with their phases, and the reason of each that does not run."""
        with _told():
            async with connect(self._at(namespace)) as server:
                found = await overview.read(server, everywhere=all_namespaces)
        return Answer(code=Exit.DONE, answer=msgspec.to_builtins(found))

    async def status(self, name: Name, namespace: Namespace = "") -> Answer:
        """How a job or a served model stands: slices or roles, hosts, restarts, what it waits for."""
        return await self._json(status.COMMAND, namespace, name)

    async def why(self, name: Name, namespace: Namespace = "") -> Answer:
        """Why a job or a served model does not run, or has failed: the root cause first, and what to do."""
        return await self._json(why.COMMAND, namespace, name)

    async def logs(  # noqa: PLR0913 - each narrows what is read
        self,
        name: Name,
        namespace: Namespace = "",
        *,
        failed: bool = False,
        previous: bool = False,
        ranks: list[Number] | None = None,
        slices: list[Number] | None = None,
        roles: list[Word] | None = None,
        tail: Number = 100,
    ) -> Answer:
        """What the hosts have written, in the order of time: the last lines of each, or of some.

        `failed` is for the host that failed first, `previous` for containers before their last restart. Ranks
        are hosts over all slices, as NODE_RANK counts them; roles are those of a served model.
        """
        chosen = [
            *(f"--rank={rank}" for rank in ranks or ()),
            *(f"--slice={index}" for index in slices or ()),
            *(f"--role={role}" for role in roles or ()),
            *(["--failed"] if failed else ()),
            *(["--previous"] if previous else ()),
        ]
        return await self._text(logs.COMMAND, namespace, name, f"--tail={tail}", *chosen)

    async def events(self, name: Name, namespace: Namespace = "", *, warnings: bool = False) -> Answer:
        """What has happened to a job or a served model and its pods, in order."""
        return await self._json(happenings.COMMAND, namespace, name, *(["--warnings"] if warnings else ()))

    async def top(self, name: Name, namespace: Namespace = "") -> Answer:
        """What the hosts of a job use, and how long their processes have been quiet."""
        return await self._json(top.COMMAND, namespace, name)

    async def stacks(
        self,
        name: Name,
        namespace: Namespace = "",
        *,
        ranks: list[Number] | None = None,
        slices: list[Number] | None = None,
    ) -> Answer:
        """Where the processes of a job stand: Python stacks of all their threads, of all hosts or some.

        Ranks are hosts over all slices, as NODE_RANK counts them. Code 1: some host does not answer.
        """
        chosen = [
            *(f"--rank={rank}" for rank in ranks or ()),
            *(f"--slice={index}" for index in slices or ()),
        ]
        return await self._json(stacks.COMMAND, namespace, name, *chosen)

    async def topologies(self, accelerator: Word = "", *, available: bool = False) -> Answer:
        """Which slices there are; with `available` the node pools of the cluster, and who is in them."""
        words = [*([accelerator] if accelerator else ()), *(["--available"] if available else ())]
        return await self._json(topologies.COMMAND, "", *words)

    async def explain(self, what: Word) -> Answer:
        """What a field (spec.tpu.topology), a reason, a cause of failures, or a gate of rollouts means."""
        return await self._json(explain.COMMAND, "", what)

    async def doctor(self, namespace: Namespace = "") -> Answer:
        """What is wrong with the cluster, and what to do about it."""
        return await self._json(doctor.COMMAND, namespace)

    async def rollout_status(self, name: Name, namespace: Namespace = "") -> Answer:
        """Ready replicas of a served model by revision and role, and what holds its rollout."""
        return await self._json(COMMANDS["rollout status"], namespace, name)

    async def rollout_plan(
        self,
        name: Name,
        namespace: Namespace = "",
        *,
        manifest: str = "",
        to_revision: Word = "",
    ) -> Answer:
        """Every step of a rollout before it begins, and the spare slices that it needs; changes nothing.

        `manifest` is YAML of the TPUInference as it is to become, `to_revision` one to go back to; with
        neither, what is left of the present rollout. Code 1: the plan does not come to its end by itself.
        """
        with TemporaryDirectory() as folder:
            words = [name, *([f"--to-revision={to_revision}"] if to_revision else ())]
            if manifest:
                file = Path(folder) / "manifest.yaml"
                file.write_text(manifest)
                words.append(f"--file={file}")
            return await self._json(planning.COMMAND, namespace, *words)

    async def rollout_history(self, name: Name, namespace: Namespace = "") -> Answer:
        """Revisions of a served model, and how each differs from the last."""
        return await self._json(COMMANDS["rollout history"], namespace, name)

    async def restart(
        self, name: Name, namespace: Namespace = "", *, slices: list[Number] | None = None
    ) -> Answer:
        """Start all processes of a job anew, in new pods, without a charge; or only those of some slices."""
        words = [f"--slice={index}" for index in slices or ()]
        return await self._text(COMMANDS["restart"], namespace, name, *words)

    async def suspend(self, name: Name, namespace: Namespace = "") -> Answer:
        """Stop the pods of a job, and keep the job."""
        return await self._text(COMMANDS["suspend"], namespace, name)

    async def resume(self, name: Name, namespace: Namespace = "") -> Answer:
        """Let a suspended job run."""
        return await self._text(COMMANDS["resume"], namespace, name)

    async def rollout_pause(self, name: Name, namespace: Namespace = "") -> Answer:
        """Stop a rollout where it is; what fails is still repaired."""
        return await self._text(COMMANDS["rollout pause"], namespace, name)

    async def rollout_resume(self, name: Name, namespace: Namespace = "") -> Answer:
        """Let a paused rollout go on."""
        return await self._text(COMMANDS["rollout resume"], namespace, name)

    async def rollout_promote(self, name: Name, namespace: Namespace = "", *, full: bool = False) -> Answer:
        """End the present step of a canary; with `full` all that are left."""
        return await self._text(COMMANDS["rollout promote"], namespace, name, *(["--full"] if full else ()))

    async def rollout_rollback(
        self, name: Name, namespace: Namespace = "", *, to_revision: Word = ""
    ) -> Answer:
        """Go back to the last revision that all replicas were of, or to another one."""
        words = [f"--to-revision={to_revision}"] if to_revision else []
        return await self._text(COMMANDS["rollout rollback"], namespace, name, *words)

    async def rollout_restart(self, name: Name, namespace: Namespace = "") -> Answer:
        """Make all pods of a served model anew, within the budgets of rollouts."""
        return await self._text(COMMANDS["rollout restart"], namespace, name)

    async def _json(self, command: Command, namespace: str, *words: str) -> Answer:
        code, said = await self._run(command, namespace, *words, "--output=json")
        return Answer(code=code, answer=msgspec.json.decode(said))

    async def _text(self, command: Command, namespace: str, *words: str) -> Answer:
        code, said = await self._run(command, namespace, *words)
        cut = f"({len(said) - LONGEST} characters before this are left out)\n" if len(said) > LONGEST else ""
        return Answer(code=code, answer=cut + said[-LONGEST:])

    async def _run(self, command: Command, namespace: str, *words: str) -> tuple[int, str]:
        """Run a command; its exit code, and what it has written."""
        out = StringIO()
        with _told():
            parser = _Words(prog=command.name)
            command.add(parser)
            options = parser.parse_args(words, Options(**asdict(self._at(namespace))))
            terminal = Terminal(out, {}, interactive=False)
            code = await command.run(Call(options, terminal, clock=self._clock))
        return code, out.getvalue()

    def _at(self, namespace: str) -> Place:
        return replace(self._place, namespace=namespace or self._place.namespace)


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong is told as the commands tell it, with what to do."""
    try:
        yield
    except ApiError as error:
        raise _error(explain_error(error)) from error
    except CommandError as error:
        raise _error(error) from error


def _error(error: CommandError) -> ToolError:
    advice = f"\n{error.advice}" if error.advice else ""
    return ToolError(f"{error} (exit code {int(error.code)}){advice}")
