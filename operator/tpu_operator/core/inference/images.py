"""What an installation has around TPUInferences: images where an object names none, and rights of pickers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PICKER_ROLE: Final = "tpu-operator-endpoint-picker"


@dataclass(frozen=True, slots=True)
class Images:
    """Images by what runs in them."""

    engine: str
    """Of engines: the runtime image."""

    endpoint_picker: str
    """Of the endpoint picker that knows roles and revisions."""

    sidecar: str
    """Of the routing sidecar of decode replicas."""

    picker_role: str = PICKER_ROLE
    """ClusterRole with what endpoint pickers may do."""
