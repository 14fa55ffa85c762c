"""`kubectl tpu mcp` as an agent uses it: by the SDK's own client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from mcp import Client, StdioServerParameters
from mcp.server.mcpserver.exceptions import ToolError

from tests.builders import NOW
from tests.inference import image
from tests.unit.cli import rolescenes
from tests.unit.cli.agent.apiserver import Served, serving
from tests.unit.cli.scenes import Screen, event, failed, in_use, running
from tpu_operator.api import BlockedReason
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli.advice import BLOCKED
from tpu_operator.cli.agent import command
from tpu_operator.cli.agent.server import server
from tpu_operator.cli.agent.tools import LONGEST, Toolbox
from tpu_operator.cli.command import Exit, Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROGRAM = Path(sys.executable).with_name("kubectl-tpu")
READING = {
    "list_workloads",
    "status",
    "why",
    "logs",
    "events",
    "top",
    "stacks",
    "topologies",
    "explain",
    "doctor",
    "rollout_status",
    "rollout_plan",
    "rollout_history",
}
WRITING = {
    "restart",
    "suspend",
    "resume",
    "rollout_pause",
    "rollout_resume",
    "rollout_promote",
    "rollout_rollback",
    "rollout_restart",
}


class Agent:
    """An agent that has the server.

    Args:
        client: the SDK's.
        kubeconfig: the way to the cluster.
    """

    def __init__(self, client: Client, kubeconfig: Path) -> None:
        self.client = client
        self._kubeconfig = kubeconfig

    async def __call__(self, tool: str, /, **arguments: Any) -> tuple[int, Any]:
        """A command's exit code, and its answer."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        assert json.loads(text(result)) == result.structured_content
        return result.structured_content["code"], result.structured_content["answer"]

    async def refused(self, tool: str, /, **arguments: Any) -> str:
        """What an error says."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.content
        return text(result)

    async def typed(self, *words: str) -> tuple[int, Any]:
        """The same from the command line."""
        line, screen = [*words, "--kubeconfig", str(self._kubeconfig), "-o", "json"], Screen()
        code = await asyncio.to_thread(command_line.call, line, screen)
        return code, json.loads(screen.text)


def text(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


@asynccontextmanager
async def apart(served: Served, folder: Path, *options: str, mode: str = "auto") -> AsyncIterator[Agent]:
    """An agent whose server is a process of its own, as in its configuration."""
    async with serving(served, folder) as kubeconfig:
        line = ["mcp", "--kubeconfig", str(kubeconfig), *options]
        async with Client(StdioServerParameters(command=str(PROGRAM), args=line), mode=mode) as client:
            yield Agent(client, kubeconfig)


@asynccontextmanager
async def agent(served: Served, folder: Path) -> AsyncIterator[Agent]:
    """An agent whose server is in this process."""
    async with serving(served, folder) as kubeconfig:
        made = server(Place(str(kubeconfig)), lambda: datetime.now(UTC), writes=False)
        async with Client(made) as client:
            yield Agent(client, kubeconfig)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_it_only_reads(tmp_path: Path, mode: str) -> None:
    served = Served().job(running())
    async with apart(served, tmp_path, mode=mode) as ask:
        tools = (await ask.client.list_tools()).tools
        assert {tool.name for tool in tools} == READING
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        assert all(tool.description for tool in tools)
        assert "Unknown tool: suspend" in await ask.refused("suspend", name="train")
        assert ask.client.server_info
        assert ask.client.server_info.name == "tpu-operator"
        assert await ask("status", name="train") == await ask.typed("status", "train")
    assert served.writes == []


async def test_a_job_that_has_failed(tmp_path: Path) -> None:
    served = Served().job(failed()).events(event("Failed", "the container has ended", about="Pod/train-0-2"))
    served.logs = {f"train-0-{host}": f"2026-11-30T12:00:0{host}Z line {host}\n" for host in range(4)}
    async with agent(served, tmp_path) as ask:
        code, answer = await ask("why", name="train")
        assert (code, answer) == await ask.typed("why", "train")
        assert code == Exit.BAD
        assert answer["cause"].startswith(
            "UserError, exit code 1: FloatingPointError: the loss is not a number"
        )
        assert await ask("status", name="tpujob/train") == await ask.typed("status", "train")
        assert await ask("events", name="train", warnings=True) == await ask.typed("events", "train")
        assert (await ask("logs", name="train", ranks=[2], tail=5))[1] == "line 2\n"
        assert (await ask("logs", name="train", failed=True))[1].startswith("UserError, exit code 1: ")
        _, (one,) = await ask("list_workloads")
        assert (one["kind"], one["namespace"], one["name"]) == ("TPUJob", "default", "train")
        assert (one["phase"], one["reason"]) == ("Failed", "MaxRestartsReached")
    assert served.writes == []


async def test_a_job_that_waits(tmp_path: Path) -> None:
    async with agent(Served().job(in_use()), tmp_path) as ask:
        _, (one,) = await ask("list_workloads", all_namespaces=True)
        assert (one["phase"], one["reason"]) == ("Pending", "CapacityInUse")
        assert "held are pool-a by team-b/big" in one["message"]
        _, meaning = await ask("explain", what=one["reason"])
        assert meaning["description"] == BLOCKED[BlockedReason.CAPACITY_IN_USE].meaning


async def test_a_model_that_is_served(tmp_path: Path) -> None:
    async with agent(Served().inference(rolescenes.held()), tmp_path) as ask:
        assert await ask("rollout_status", name="qwen") == await ask.typed("rollout", "status", "qwen")
        assert await ask("rollout_history", name="qwen") == await ask.typed("rollout", "history", "qwen")
        _, (one,) = await ask("list_workloads")
        assert (one["kind"], one["reason"]) == ("TPUInference", "Pause")
        assert await ask("rollout_plan", name="qwen") == await ask.typed("rollout", "plan", "qwen")


async def test_where_processes_stand(tmp_path: Path) -> None:
    served = Served().job(running())
    stack = b'process 7:\nThread 0x1:\n  File "train.py", line 3 in step\x1b[2J\n'
    served.pages = {(f"train-0-{host}", "stacks"): stack for host in (0, 1, 3)}
    async with agent(served, tmp_path) as ask:
        code, answer = await ask("stacks", name="train")
        assert (code, answer) == await ask.typed("stacks", "train")
        assert code == Exit.BAD
        assert [host["pod"] for host in answer] == [f"train-0-{host}" for host in range(4)]
        assert [bool(host["error"]) for host in answer] == [False, False, True, False]
        assert 'File "train.py", line 3 in step' in answer[3]["stacks"]
        assert await ask("stacks", name="train", ranks=[1]) == (Exit.DONE, [answer[1]])
    assert served.writes == []


async def test_a_change_before_it_is_made(tmp_path: Path) -> None:
    served = Served().inference(rolescenes.serving())
    wanted = rolescenes.serving().patch_spec(engine=image("2")).inference
    manifest = {
        "apiVersion": "tpu-operator.dev/v1alpha1",
        "kind": "TPUInference",
        "metadata": {"name": "qwen"},
        "spec": wanted.spec.wire(),
    }
    async with agent(served, tmp_path) as ask:
        code, plan = await ask("rollout_plan", name="qwen", manifest=yaml.safe_dump(manifest))
        assert code == Exit.DONE
        assert plan["slices"][0]["spare"] == 2
        said = await ask.refused("rollout_plan", name="qwen", manifest="kind: ConfigMap")
        assert "has no TPUInference" in said
    assert served.writes == []


async def test_what_writes_is_there_if_that_is_allowed(tmp_path: Path) -> None:
    served = Served().job(running()).inference(rolescenes.held())
    async with apart(served, tmp_path, "--allow-writes") as ask:
        tools = {tool.name: tool for tool in (await ask.client.list_tools()).tools}
        assert tools.keys() == READING | WRITING
        for name in WRITING:
            hints = tools[name].annotations
            assert hints is not None
            assert (hints.read_only_hint, hints.destructive_hint) == (False, True)
        assert (await ask("suspend", name="train"))[1].startswith("tpujob/train suspended")
        assert (await ask("restart", name="train"))[1].startswith("tpujob/train restarts")
        assert (await ask("rollout_pause", name="qwen"))[1].startswith("tpuinference/qwen paused")
        assert (await ask("rollout_promote", name="qwen", full=True))[1].startswith(
            "tpuinference/qwen promoted"
        )
        assert (await ask("rollout_rollback", name="qwen"))[1].startswith("tpuinference/qwen goes back")
        assert (await ask("rollout_restart", name="qwen"))[1].startswith("tpuinference/qwen restarts")
        assert "is not suspended already" in (await ask("resume", name="train"))[1]
        assert "is not paused" in (await ask("rollout_resume", name="qwen"))[1]
    methods = [(method, path.split("/")[-2], path.split("/")[-1]) for method, path, _ in served.writes]
    assert methods == [
        ("PATCH", "tpujobs", "train"),
        ("DELETE", "pods", "train-0-0"),
        ("PATCH", "tpuinferences", "qwen"),
        ("PATCH", "tpuinferences", "qwen"),
        ("PUT", "tpuinferences", "qwen"),
        ("PUT", "tpuinferences", "qwen"),
    ]
    assert served.writes[0][2]["spec"] == {"suspend": True}


async def test_what_goes_wrong_is_said_with_what_to_do(tmp_path: Path) -> None:
    async with agent(Served().job(running()), tmp_path) as ask:
        assert "did you mean train?" in await ask.refused("status", name="trian")
        assert "there is no TPUJob train in namespace other" in await ask.refused(
            "why", name="train", namespace="other"
        )
        assert "--rank 9: TPUJob train has ranks 0 to 3" in await ask.refused("logs", name="train", ranks=[9])
        assert "v9 is not in the catalog" in await ask.refused("topologies", accelerator="v9")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("status", {"name": "--help"}),
        ("status", {"name": "train", "namespace": "../x"}),
        ("status", {"name": "train\n"}),
        ("explain", {"what": "-h"}),
        ("logs", {"name": "train", "ranks": [-1]}),
        ("logs", {"name": "train", "roles": ["--follow"]}),
        ("rollout_plan", {"name": "qwen", "to_revision": "--kubeconfig"}),
    ],
)
async def test_no_argument_becomes_an_option(tool: str, arguments: dict[str, Any]) -> None:
    made = server(Place(), lambda: NOW, writes=False)
    with pytest.raises(ToolError, match="validation error"):
        await made.call_tool(tool, arguments)


async def test_long_logs_are_cut_at_their_beginning(tmp_path: Path) -> None:
    served = Served().job(running())
    served.logs = {f"train-0-{host}": "2026-11-30T12:00:00Z x\n" for host in range(4)}
    served.logs["train-0-0"] = "".join(f"2026-11-30T12:00:00Z {n:06}\n" for n in range(LONGEST // 7 + 10))
    async with serving(served, tmp_path) as kubeconfig:
        toolbox = Toolbox(Place(str(kubeconfig)), lambda: NOW)
        answer = (await toolbox.logs("train", ranks=[0], tail=10**6)).answer
    first, _, rest = answer.partition("\n")
    assert first == "(67 characters before this are left out)"
    assert len(rest) == LONGEST


def test_without_the_sdk_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    assert command_line.call(["mcp"], Screen()) == Exit.BAD
    assert "tpu-operator[mcp]" in capsys.readouterr().err
