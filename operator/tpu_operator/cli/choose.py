"""Which hosts are meant: `--rank` and `--slice`, and of a TPUInference `--role` and `--revision`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_operator.cli.command import CommandError, Exit, Parser, number
from tpu_operator.cli.tree import shape_of
from tpu_operator.core import names

if TYPE_CHECKING:
    import argparse

    from tpu_operator.api import TPUJob
    from tpu_operator.core.snapshot import Pod


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


def add_roles(parser: Parser) -> None:
    """Arguments that choose replicas of a TPUInference."""
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        help="only this role of a TPUInference; --slice is a replica of it then, --rank a host; repeatable",
    )
    parser.add_argument(
        "--revision", action="append", default=[], help="only this revision of a TPUInference; repeatable"
    )


@dataclass(frozen=True, slots=True)
class RoleChoice:
    """Hosts of a TPUInference; empty fields are for all.

    Attributes:
        roles: names of roles.
        revisions: names of revisions.
        replicas: numbers of replicas among those of their role and revision.
        hosts: numbers of hosts in their replica.
    """

    roles: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ()
    replicas: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()

    def wants(self, pod: Pod) -> bool:
        """Whether a pod of the TPUInference is one of them."""
        labels = pod.metadata.labels
        wanted = {
            names.LABEL_ROLE: self.roles,
            names.LABEL_REVISION: self.revisions,
            names.LABEL_REPLICA: tuple(map(str, self.replicas)),
            names.LABEL_HOST: tuple(map(str, self.hosts)),
        }
        return all(not values or labels.get(label) in values for label, values in wanted.items())


def chosen_roles(options: argparse.Namespace) -> RoleChoice:
    """The hosts of a TPUInference that were chosen."""
    return RoleChoice(tuple(options.role), tuple(options.revision), tuple(options.slice), tuple(options.rank))


def chosen(options: argparse.Namespace) -> Choice:
    """The hosts of a job that were chosen.

    Raises:
        CommandError: roles or revisions were, which a job has none of.
    """
    if getattr(options, "role", ()) or getattr(options, "revision", ()):
        raise CommandError("a TPUJob has no roles and revisions: choose with --rank and --slice", Exit.USAGE)
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
