"""The operator's own settings, as its command line gives them."""

from __future__ import annotations

import argparse
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tpu_operator.core.inference.images import PICKER_ROLE, Images
from tpu_operator.core.settings import PodSettings

if TYPE_CHECKING:
    from collections.abc import Sequence


NODE_LOST_AFTER: Final = 60.0
SILENT_AFTER: Final = 150.0
"""Seconds; the server says something on every watch once a minute, and one without a word is renewed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One running operator."""

    pods: PodSettings
    """What ends up in pods."""

    images: Images
    """Images around TPUInferences that name none."""

    namespaces: tuple[str, ...]
    """Namespaces to work in; none means the whole cluster."""

    own_namespace: str
    """Where the Lease is."""

    identity: str
    """Name of this replica."""

    metrics_port: int
    """Port of `/metrics` and `/readyz`."""

    health_port: int
    """Port of `/healthz`."""

    log_level: str
    """`debug`, `info`, `warning` or `error`."""

    log_format: str
    """`json` or `text`."""

    workers: int
    """Objects that are worked on at a time."""

    node_lost_after: float = NODE_LOST_AFTER
    """Seconds for which a node may be out of touch before its pods count as lost."""

    silent_after: float = SILENT_AFTER
    """Seconds without a word on a watch, after which `/healthz` fails."""

    prometheus: tuple[str, ...] = ()
    """URLs that analyses of canaries may ask, the one for those that name none first."""


def server_url(text: str) -> str:
    """A URL to which paths of an API can be added.

    Raises:
        argparse.ArgumentTypeError: it is none, or more than that.
    """
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text!r}: write a URL such as http://prometheus.monitoring:9090")
    if parts.username or parts.password:
        raise argparse.ArgumentTypeError("credentials in a URL would be shown: give one without")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the settings to a parser."""
    add = parser.add_argument
    add("--runtime-image", required=True, help="image of pods whose job names none")
    add("--launcher-image", required=True, help="image that brings the launcher to images that are not ours")
    add("--endpoint-picker-image", default="", help="image of endpoint pickers for which none is named")
    add(
        "--endpoint-picker-role",
        default=PICKER_ROLE,
        help="ClusterRole of endpoint pickers (%(default)s)",
    )
    add("--sidecar-image", default="", help="image of routing sidecars for which none is named")
    add("--emulate", choices=["", "cpu"], default="", help="`cpu` where the cluster has no TPUs")
    add("--inject-topology-env", action="store_true", help="set what GKE's device plugin sets on GKE")
    add(
        "--allow-host-path-caches",
        action="store_true",
        help="let caches be directories of nodes, which pods then read and write",
    )
    add(
        "--namespace",
        action="append",
        default=[],
        metavar="NS",
        help="work in this namespace only; repeatable",
    )
    add("--own-namespace", default=os.environ.get("POD_NAMESPACE", "tpu-operator"), help="where the Lease is")
    add("--identity", default=os.environ.get("POD_NAME", socket.gethostname()), help="name of this replica")
    add("--metrics-port", type=int, default=8080, help="port of /metrics and /readyz")
    add("--health-port", type=int, default=8081, help="port of /healthz")
    add("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    add("--log-format", choices=["json", "text"], default="text")
    add(
        "--workers",
        type=int,
        default=64,
        help="objects that are worked on at a time, half of them at most in one namespace",
    )
    add(
        "--node-lost-after",
        type=float,
        default=NODE_LOST_AFTER,
        metavar="SECONDS",
        help="pods of a node that is out of touch for so long are lost",
    )
    add(
        "--silent-after",
        type=float,
        default=SILENT_AFTER,
        metavar="SECONDS",
        help="/healthz fails when a watch has been silent for so long",
    )
    add(
        "--prometheus",
        action="append",
        type=server_url,
        default=[],
        metavar="URL",
        help="analyses of canaries may ask it, and do if they name none and it is the first; repeatable",
    )


def from_arguments(arguments: argparse.Namespace) -> Settings:
    """The settings of a parsed command line."""
    return Settings(
        pods=PodSettings(
            runtime_image=arguments.runtime_image,
            launcher_image=arguments.launcher_image,
            emulate=arguments.emulate,
            inject_topology_env=arguments.inject_topology_env,
            allow_host_path_caches=arguments.allow_host_path_caches,
        ),
        images=Images(
            engine=arguments.runtime_image,
            endpoint_picker=arguments.endpoint_picker_image,
            sidecar=arguments.sidecar_image,
            picker_role=arguments.endpoint_picker_role,
        ),
        namespaces=tuple(dict.fromkeys(arguments.namespace)),
        own_namespace=arguments.own_namespace,
        identity=arguments.identity,
        metrics_port=arguments.metrics_port,
        health_port=arguments.health_port,
        log_level=arguments.log_level,
        log_format=arguments.log_format,
        workers=arguments.workers,
        node_lost_after=arguments.node_lost_after,
        silent_after=arguments.silent_after,
        prometheus=tuple(dict.fromkeys(arguments.prometheus)),
    )


def parse(argv: Sequence[str]) -> Settings:
    """The settings of a command line."""
    parser = argparse.ArgumentParser(prog="tpu-operator run", allow_abbrev=False)
    add_arguments(parser)
    return from_arguments(parser.parse_args(argv))
