"""Images that an installation uses where an object names none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Images:
    """Images by what runs in them."""

    engine: str
    """Of engines: the runtime image."""

    endpoint_picker: str
    """Of the endpoint picker that knows roles and revisions."""

    sidecar: str
    """Of the routing sidecar of decode replicas."""
