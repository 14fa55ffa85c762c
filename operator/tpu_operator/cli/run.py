"""`kubectl tpu run`: a job from a command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.api import API_VERSION, Launcher
from tpu_operator.catalog import GENERATIONS, CatalogError, resolve
from tpu_operator.cli import logs
from tpu_operator.cli.choose import Choice
from tpu_operator.cli.command import (
    Call,
    Command,
    CommandError,
    Exit,
    Parser,
    add_output,
    add_place,
    number,
    span,
)
from tpu_operator.cli.server import connect, read_job
from tpu_operator.cli.tree import describe_shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Object = dict[str, Any]

GENERATED: Final = "run-"
"""Start of the names of jobs that were not given one."""
OPTIONS: Final = {
    "accelerator": "--accelerator",
    "topology": "--topology",
    "chipsPerHost": "--chips-per-host",
}
CAPACITY: Final = ("spot", "flex_start", "reservation", "provisioning_request", "node_pool")


def add(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of the job; default: one is made up")
    _add_tpu(parser)
    _add_program(parser)
    _add_policy(parser)
    parser.add_argument("--follow", action="store_true", help="follow the logs until the job has ended")
    parser.add_argument(
        "--dry-run",
        choices=("client", "server"),
        nargs="?",
        const="client",
        help="create nothing; server: ask the API server whether it would",
    )
    add_output(parser, "name")
    add_place(parser)


def _add_tpu(parser: Parser) -> None:
    known = ", ".join(generation.name for generation in GENERATIONS)
    parser.add_argument("--accelerator", required=True, help=f"{known}, or a value of GKE's node label")
    parser.add_argument("--topology", required=True, help="chips of a slice, such as 4x4 or 2x2x4")
    parser.add_argument("--chips-per-host", type=number, help="where accelerator and topology leave it open")
    parser.add_argument("--slices", type=number, help="number of slices (1)")
    parser.add_argument("--spare-slices", type=number, help="slices kept warm beside them (0)")
    parser.add_argument("--spot", action="store_true", default=None, help="on Spot nodes")
    parser.add_argument("--flex-start", action="store_true", default=None, help="on flex-start nodes")
    parser.add_argument("--reservation", help="on the nodes of this reservation")
    parser.add_argument("--provisioning-request", help="on the nodes of this ProvisioningRequest")
    parser.add_argument("--node-pool", help="in this node pool")


def _add_program(parser: Parser) -> None:
    parser.add_argument("--image", help="image of the program; default: the operator's runtime image")
    parser.add_argument("--launcher", choices=[*map(str, Launcher)], help="how it is started (torchrun)")
    parser.add_argument("--processes-per-host", type=number, help="default: as the launcher needs")
    parser.add_argument(
        "-e", "--env", type=variable, action="append", default=[], metavar="NAME=VALUE", help="repeatable"
    )
    parser.add_argument("--working-dir", metavar="DIR", help="default: the image's")
    parser.add_argument("--preflight", action="store_true", default=None, help="tpu-doctor looks first")


def _add_policy(parser: Parser) -> None:
    parser.add_argument("--max-restarts", type=number, help="restarts by failures that count (3)")
    parser.add_argument("--in-place", action="store_true", help="restart processes in their pods, not pods")
    parser.add_argument("--queue", help="Kueue LocalQueue that admits the job")
    parser.add_argument("--priority-class", help="PriorityClass of the pods")
    parser.add_argument("--deadline", type=span, metavar="TIME", help="fail after this time, such as 12h")
    parser.add_argument("--ttl", type=span, metavar="TIME", help="delete the job this long after its end")
    parser.add_argument("--suspend", action="store_true", default=None, help="do not start it yet")


def variable(text: str) -> tuple[str, str]:
    """A variable of the environment: NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE")
    return name, value


def manifest(options: argparse.Namespace, words: Sequence[str], namespace: str = "") -> Object:
    """The TPUJob that is asked for: only what differs from the defaults.

    Raises:
        CommandError: there is no command, or no such slice.
    """
    if not words:
        raise CommandError(
            "there is nothing to run", Exit.USAGE, "write the program after `--`: … -- python train.py"
        )
    try:
        resolve(options.accelerator, options.topology, options.chips_per_host)
    except CatalogError as error:
        advice = "`kubectl tpu topologies` lists the slices that exist"
        raise CommandError(_as_options(str(error)), Exit.USAGE, advice) from error
    metadata = {"name": options.name} if options.name else {"generateName": GENERATED}
    return {
        "apiVersion": API_VERSION,
        "kind": "TPUJob",
        "metadata": metadata | ({"namespace": namespace} if namespace else {}),
        "spec": _given(
            tpu=_tpu(options),
            run=_run(options, words),
            failurePolicy=_given(
                maxRestarts=options.max_restarts,
                restartStrategy="InPlace" if options.in_place else None,
            ),
            scheduling=_given(queueName=options.queue, priorityClassName=options.priority_class),
            activeDeadlineSeconds=options.deadline,
            ttlSecondsAfterFinished=options.ttl,
            suspend=options.suspend,
        ),
    }


def _tpu(options: argparse.Namespace) -> Object:
    capacity = {_camel(name): getattr(options, name) for name in CAPACITY}
    return _given(
        accelerator=options.accelerator,
        topology=options.topology,
        chipsPerHost=options.chips_per_host,
        slices=options.slices,
        spareSlices=options.spare_slices,
        capacity=_given(**capacity),
    )


def _run(options: argparse.Namespace, words: Sequence[str]) -> Object:
    return _given(
        image=options.image,
        command=list(words),
        env=[{"name": name, "value": value} for name, value in options.env],
        workingDir=options.working_dir,
        launcher=options.launcher,
        processesPerHost=options.processes_per_host,
        preflight=options.preflight,
    )


def _given(**fields: Any) -> Object:
    """Only the fields that have a value."""
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _as_options(message: str) -> str:
    """A message about fields in terms of options."""
    field, colon, text = message.partition(": ")
    option = OPTIONS.get(field, field)
    return f"{option}{colon}{text}".replace("chipsPerHost", OPTIONS["chipsPerHost"])


async def run(call: Call) -> int:
    """Create the job."""
    options = call.options
    body = manifest(options, call.words, call.place.namespace)
    if options.dry_run == "client":
        _answer(call, body, "created (dry run)")
        return Exit.DONE
    async with connect(call.place) as server:
        created = await server.create(body, dry_run=options.dry_run == "server")
        if options.dry_run:
            _answer(call, body, "created (server dry run)")
            return Exit.DONE
        _answer(call, created, "created")
        if not options.follow:
            return Exit.DONE
        job = read_job(created)
        pods = Choice().pods(job)
        return await logs.follow(logs.Printer(call.terminal, pods), server, job, logs.everything())


def _answer(call: Call, body: Mapping[str, Any], what: str) -> None:
    name = body["metadata"].get("name") or f"{body['metadata']['generateName']}?"
    if call.options.output == "name":
        call.terminal.lines([f"tpujob.{API_VERSION.partition('/')[0]}/{name}"])
        return
    shape = describe_shape(read_job({**body, "metadata": {"name": name}}))
    call.show(body, lambda: [f"tpujob/{name} {what}: {shape}", *_next(name, call)])


def _next(name: str, call: Call) -> list[str]:
    """What to type next."""
    if call.options.dry_run or call.options.follow:
        return []
    where = f" -n {call.place.namespace}" if call.place.namespace else ""
    return [f"  kubectl tpu status {name}{where} --watch", f"  kubectl tpu logs {name}{where} --follow"]


COMMAND: Final = Command(
    "run",
    "a job from a command line",
    add,
    run,
    words="COMMAND [ARGUMENT...]",
    details="Everything else that a TPUJob can say: --dry-run -o yaml, then edit the file.",
)
