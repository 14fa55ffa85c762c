"""Which hosts of a job are meant: `--rank`, `--slice`, `--head`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_operator.cli.command import CommandError, Exit, Parser, number
from tpu_operator.cli.tree import shape_of
from tpu_operator.core import names

if TYPE_CHECKING:
    import argparse

    from tpu_operator.api import TPUJob


@dataclass(frozen=True, slots=True)
class Choice:
    """Hosts of a job.

    Attributes:
        ranks: numbers of hosts, counted over all slices as NODE_RANK counts them; empty for all.
        slices: indexes of slices; empty for all.
    """

    ranks: tuple[int, ...] = ()
    slices: tuple[int, ...] = ()

    def pods(self, job: TPUJob) -> list[str]:
        """Names of their pods, in the order of ranks.

        Raises:
            CommandError: there is no such host.
        """
        hosts = hosts_per_slice(job)
        everything = [divmod(rank, hosts) for rank in range(hosts * job.spec.tpu.slices)]
        _check("rank", self.ranks, len(everything), job)
        _check("slice", self.slices, job.spec.tpu.slices, job)
        chosen = [
            (index, host)
            for rank, (index, host) in enumerate(everything)
            if (not self.ranks or rank in self.ranks) and (not self.slices or index in self.slices)
        ]
        if not chosen:
            raise CommandError("no host has both that rank and that slice: leave one of them out", Exit.USAGE)
        workers = [names.worker_name(job.metadata.name, index, host) for index, host in chosen]
        whole = not self.ranks and not self.slices
        return workers + ([names.head_name(job.metadata.name)] if whole and job.spec.head else [])


def add(parser: Parser) -> None:
    """Arguments that choose hosts."""
    parser.add_argument(
        "--rank",
        type=number,
        action="append",
        default=[],
        help="only this host, counted over all slices from 0 on, as NODE_RANK is; repeatable",
    )
    parser.add_argument(
        "--slice", type=number, action="append", default=[], help="only this slice; repeatable"
    )


def chosen(options: argparse.Namespace) -> Choice:
    """The hosts that were chosen."""
    return Choice(tuple(options.rank), tuple(options.slice))


def hosts_per_slice(job: TPUJob) -> int:
    """Hosts of each slice.

    Raises:
        CommandError: there is no slice of that shape.
    """
    shape = shape_of(job)
    if shape is None:
        tpu = job.spec.tpu
        raise CommandError(
            f"{tpu.accelerator} {tpu.topology} is no slice that exists, so the job has no hosts",
            advice="`kubectl tpu topologies` lists those that do",
        )
    return shape.hosts


def _check(what: str, asked: tuple[int, ...], count: int, job: TPUJob) -> None:
    wrong = [index for index in asked if index >= count]
    if wrong:
        raise CommandError(
            f"--{what} {wrong[0]}: TPUJob {job.metadata.name} has {what}s 0 to {count - 1}", Exit.USAGE
        )
