"""The `tpu-operator` command."""

from __future__ import annotations

import argparse
import sys
from typing import Final

import msgspec

from tpu_operator import settings
from tpu_operator.api import crd
from tpu_operator.catalog import CatalogError
from tpu_operator.core.inference import forecast
from tpu_operator.manifests import ManifestError, old_and_new

BAD: Final = 1
USAGE: Final = 2


def main() -> None:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(prog="tpu-operator", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    settings.add_arguments(commands.add_parser("run", help="run the operator"))
    commands.add_parser("crds", help="print the custom resource definitions")
    _add_plan(commands.add_parser("plan", help="print the steps from one TPUInference to another"))
    arguments = parser.parse_args()
    if arguments.command == "crds":
        sys.stdout.write("---\n".join(crd.render().values()))
        return
    if arguments.command == "plan":
        sys.exit(_plan(arguments))
    # kopf takes a second to import, which the other commands need not wait for.
    from tpu_operator import app  # noqa: PLC0415

    sys.exit(app.run(settings.from_arguments(arguments)))


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print every step of a rollout, without a cluster: from the first file, all of whose replicas are "
        "taken to be ready, to the second; or from nothing to the only one."
    )
    parser.add_argument(
        "-f", "--file", action="append", required=True, help="YAML with a TPUInference; the old one first"
    )
    parser.add_argument("--name", default="", help="the TPUInference, where files have several")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")


def _plan(arguments: argparse.Namespace) -> int:
    """Print a rollout; the exit code is 1 if it does not come to its end by itself."""
    try:
        found = forecast.of_specs(*old_and_new(arguments.file, arguments.name))
    except (ManifestError, CatalogError) as error:
        sys.stderr.write(f"error: {error}\n")
        return USAGE
    if arguments.output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in forecast.render(found)))
    return BAD if found.end else 0


if __name__ == "__main__":
    main()
