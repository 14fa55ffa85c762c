"""The `tpu-operator` command."""

from __future__ import annotations

import argparse
import sys

from tpu_operator import settings
from tpu_operator.api import crd


def main() -> None:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(prog="tpu-operator", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    settings.add_arguments(commands.add_parser("run", help="run the operator"))
    commands.add_parser("crds", help="print the custom resource definitions")
    arguments = parser.parse_args()
    if arguments.command == "crds":
        sys.stdout.write("---\n".join(crd.render().values()))
        return
    # kopf takes a second to import, which the other commands need not wait for.
    from tpu_operator import app  # noqa: PLC0415

    sys.exit(app.run(settings.from_arguments(arguments)))


if __name__ == "__main__":
    main()
