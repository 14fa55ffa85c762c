"""What `ray start` calls before it starts anything (RAY_START_HOOK); it runs in Ray's interpreter."""

from __future__ import annotations

from typing import Any


def no_client_server(params: Any, head: bool) -> None:  # noqa: ARG001 - Ray's signature
    """Leave out the server for Ray clients, for which there is no option.

    The driver is beside the head and needs none, and where the server cannot start in time, as under load,
    the whole node ends.
    """
    params.ray_client_server_port = None
