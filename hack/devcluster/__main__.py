"""The command line: `python3 -m hack.devcluster`, to be run from the root of the clone."""

import argparse
import shlex
import sys
import time
from pathlib import Path

from hack.devcluster import binaries, bringup, kind, process, teardown
from hack.devcluster.cluster import Cluster
from hack.devcluster.state import DEFAULT_NAME, DevClusterError, Layout, Shape


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except DevClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m hack.devcluster", description="A local cluster of TPU hosts."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=DEFAULT_NAME, help="name of the cluster (default: %(default)s)")

    up = commands.add_parser("up", parents=[named], help="start a cluster and wait until it is ready")
    up.add_argument("--nodes", type=int, default=4, help="real nodes (default: %(default)s)")
    up.add_argument("--fake-nodes", type=int, default=0, help="nodes played by kwok (default: %(default)s)")
    up.add_argument(
        "--api-qps", type=int, help="client rate of controller manager and scheduler (default: theirs)"
    )
    up.set_defaults(run=_up)

    down = commands.add_parser("down", parents=[named], help="end a cluster and remove all of it")
    down.set_defaults(run=_down)

    status = commands.add_parser("status", parents=[named], help="show components and nodes")
    status.set_defaults(run=_status)

    load = commands.add_parser("load", parents=[named], help="load image archives into all real nodes")
    load.add_argument("archive", nargs="+", type=Path, help="tar file of an image, as docker or OCI write it")
    load.set_defaults(run=_load)

    build = commands.add_parser("binaries", help="build binaries and print their directories")
    build.add_argument("binary", nargs="*", help="names of binaries (default: all of a cluster)")
    build.set_defaults(run=_binaries)
    return parser


def _up(options: argparse.Namespace) -> None:
    began = time.monotonic()
    layout = Layout(options.name)
    shape = Shape(options.nodes, options.fake_nodes, options.api_qps)
    if kind.selected():
        kind.up(layout, shape)
    else:
        bringup.up(layout, shape)
    print(f"cluster {options.name!r} is ready after {time.monotonic() - began:.1f} s", file=sys.stderr)
    print(f"export KUBECONFIG={shlex.quote(str(layout.kubeconfig))}")


def _down(options: argparse.Namespace) -> None:
    layout = Layout(options.name)
    if kind.selected():
        kind.down(layout)
    elif teardown.down(layout):
        print(f"cluster {options.name!r} is gone", file=sys.stderr)
    else:
        print(f"there is no cluster {options.name!r}", file=sys.stderr)


def _status(options: argparse.Namespace) -> None:
    cluster = Cluster.attach(options.name)
    print(
        f"API server  {cluster.server}\nkubeconfig  {cluster.kubeconfig}\nlogs        {cluster.layout.logs}\n"
    )
    for component in cluster.components:
        pid = cluster.find(component)
        print(f"{component:<26}{f'pid {pid}' if pid else 'stopped'}")
    print()
    process.require(cluster.layout, "kube-apiserver")
    for node in cluster.nodes():
        print(f"{node.name:<26}{'Ready' if node.ready else 'NotReady'}, {node.chips} chips, {node.pool}")


def _load(options: argparse.Namespace) -> None:
    for archive in options.archive:
        if kind.selected():
            kind.load(Layout(options.name), archive)
        else:
            Cluster.attach(options.name).load(archive)
        print(f"loaded {archive}", file=sys.stderr)


def _binaries(options: argparse.Namespace) -> None:
    paths = binaries.ensure(options.binary or [*filter(_of_a_cluster, binaries.tools())])
    for directory in dict.fromkeys(path.parent for path in paths.values()):
        print(directory)


def _of_a_cluster(name: str) -> bool:
    return name not in binaries.PEERS


if __name__ == "__main__":
    sys.exit(main())
