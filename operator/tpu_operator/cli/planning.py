"""`kubectl tpu rollout plan`: every step of a rollout before it begins, by what then takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpu_operator.api import HoldGate, TPUInference
from tpu_operator.catalog import CatalogError
from tpu_operator.cli.command import (
    Call,
    Command,
    CommandError,
    Exit,
    Parser,
    add_output,
    add_place,
    inference_name,
)
from tpu_operator.cli.history import chosen, history, returned
from tpu_operator.cli.server import connect, read_inference
from tpu_operator.core import names
from tpu_operator.core.inference.forecast import of_snapshot, of_specs, render
from tpu_operator.core.inference.snapshot import ControllerRevision, InferenceSnapshot
from tpu_operator.core.snapshot import Pod, Scaler
from tpu_operator.engine.resources import CONTROLLER_REVISIONS, INFERENCES, PODS, SCALERS
from tpu_operator.manifests import ManifestError
from tpu_operator.manifests import read_inference as read_file

if TYPE_CHECKING:
    from tpu_operator.cli.server import Server
    from tpu_operator.core.inference.forecast import Forecast

Object = dict[str, Any]

BY_PEOPLE: Final = frozenset({HoldGate.PAUSE, HoldGate.PARTITION, HoldGate.ANALYSIS})
"""What a plan may end with as somebody wants it to."""


def add(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        type=inference_name,
        help="name of the TPUInference; default: the one of the file",
    )
    parser.add_argument("-f", "--file", help="YAML with what it is to become, - for standard input")
    parser.add_argument(
        "--to-revision", metavar="REVISION", default="", help="name or number of a revision to go back to"
    )
    add_output(parser)
    add_place(parser)


async def run(call: Call) -> int:
    """Print the steps; the exit code is 1 if they do not come to what is asked for by themselves."""
    asked = _asked(call)
    async with connect(call.place) as server:
        found = await _forecast(call, server, asked)
    call.show(found, lambda: draw(found))
    ends = found.end is None or found.end.gate in BY_PEOPLE
    return Exit.DONE if ends and not found.rejected else Exit.BAD


def _asked(call: Call) -> TPUInference | None:
    """What the file says; None without one."""
    options = call.options
    if options.file and options.to_revision:
        raise CommandError("-f and --to-revision say two things: leave one of them out", Exit.USAGE)
    if not options.file and not options.name:
        raise CommandError("nothing is said to plan: give a file with -f, or a name", Exit.USAGE)
    try:
        return read_file(options.file, options.name or "") if options.file else None
    except ManifestError as error:
        raise CommandError(str(error), Exit.USAGE) from error


async def _forecast(call: Call, server: Server, asked: TPUInference | None) -> Forecast:
    name = asked.metadata.name if asked else call.options.name
    path = INFERENCES.path(server.namespace, name)
    wire = await server.get(INFERENCES, name) if asked is None else await server.try_get(path)
    try:
        if wire is None:
            # Nothing is there yet, and so nothing to go on from.
            return of_specs(None, asked) if asked else await _rest(call, server, {})
        return await _rest(call, server, wire, asked)
    except CatalogError as error:
        advice = "`kubectl tpu topologies` lists the slices that exist"
        raise CommandError(str(error), Exit.USAGE, advice) from error


async def _rest(call: Call, server: Server, wire: Object, asked: TPUInference | None = None) -> Forecast:
    """What will become of a TPUInference that is there."""
    live = read_inference(wire)
    selector = f"{names.LABEL_INFERENCE}={live.metadata.name}"
    stored = await server.read(CONTROLLER_REVISIONS, ControllerRevision, labelSelector=selector)
    pods = await server.read(PODS, Pod, labelSelector=selector)
    scalers = await server.read(SCALERS, Scaler, labelSelector=selector)
    if call.options.to_revision:
        entry = chosen(history(live, stored), live, call.options.to_revision)
        asked = read_inference(returned(wire, entry))
    spec = asked.spec if asked else live.spec
    snapshot = InferenceSnapshot(
        live.model_copy(update={"spec": spec}),
        pods={pod.name: pod for pod in pods},
        revisions={one.metadata.name: one for one in stored},
        scalers={one.metadata.name: one for one in scalers},
    )
    return of_snapshot(snapshot, call.clock())


def draw(found: Forecast) -> list[str]:
    """A forecast as text."""
    if found.idle and not found.rejected:
        return [f"nothing to do: all replicas are of revision {found.newest}, ready and in number"]
    return render(found)


COMMAND: Final = Command(
    "rollout plan",
    "every step of a rollout before it begins; changes nothing",
    add,
    run,
    details="With -f: from what is there to what the file says. With a name alone: what is left to do. "
    "`tpu-operator plan -f OLD -f NEW` does the same without a cluster.",
)
