"""The launchers of a job's hosts, which answer through the API server's proxy to their pods."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tpu_operator.cli import choose
from tpu_operator.cli.command import CommandError, Exit
from tpu_operator.core import names
from tpu_operator.engine.resources import PODS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Sequence

    from tpu_operator.cli.server import Server

T = TypeVar("T")
Object = dict[str, Any]

AT_ONCE: Final = 16
PATIENCE: Final = 5.0
"""Seconds for a host to answer, whose node may be gone."""


async def hosts(server: Server, options: argparse.Namespace) -> list[Object]:
    """Pods of the hosts of a job that are chosen and there, by rank.

    Raises:
        CommandError: there is no such job or host, or none of them is there.
    """
    job = await server.job(options.name)
    wanted = choose.chosen(options).pods(job)
    found = await server.read(PODS, Object, labelSelector=f"{names.LABEL_JOB}={job.metadata.name}")
    pods = {pod["metadata"]["name"]: pod for pod in found}
    there = [pods[name] for name in wanted if name in pods]
    if not there:
        advice = f"`kubectl tpu why {job.metadata.name}` says what it waits for"
        raise CommandError(f"TPUJob {job.metadata.name} has no pods now", Exit.NOT_FOUND, advice)
    return there


async def of_each(pods: Sequence[Object], ask: Callable[[Object], Awaitable[T]]) -> list[T]:
    """What each host answers, of a few at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(pod: Object) -> T:
        async with gate:
            return await ask(pod)

    return list(await asyncio.gather(*map(one, pods)))


def path(server: Server, pod: Object, page: str) -> str:
    """The way to a page of the launcher of a pod."""
    return PODS.path(server.namespace, f"{pod['metadata']['name']}:{port(pod)}", f"proxy/{page}")


def port(pod: Object) -> int:
    """Where the launcher of a pod answers."""
    ports = [p for container in pod["spec"]["containers"] for p in container.get("ports", [])]
    return int(next((p["containerPort"] for p in ports if p.get("name") == "launcher"), names.LAUNCHER_PORT))
