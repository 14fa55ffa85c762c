"""TorchTPU's addresses in the order in which Ray Train has numbered its workers.

A process takes the address at the place of its rank in TORCH_TPU_SLICEBUILDER_ADDRESSES for its own. The
operator lists them host by host, but Ray Train 2.60 counts the workers of a slice as it has found room for
them, and rank 1 may be on any host: others would look for it where it does not listen.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ADDRESSES = "TORCH_TPU_SLICEBUILDER_ADDRESSES"


@dataclass(frozen=True)
class Seat:
    """Where a worker is.

    Attributes:
        slice_name: TPU_NAME of its host.
        host: TPU_WORKER_ID of its host.
        addresses: those of all devices of the slice, host by host.
        per_host: devices of a host.
    """

    slice_name: str
    host: int
    addresses: tuple[str, ...]
    per_host: int


def own_seat() -> Optional[Seat]:
    """Where this process is; None where its host has no addresses for TorchTPU."""
    return seat(os.environ)


def seat(variables: Mapping[str, str]) -> Optional[Seat]:
    """Where a worker with these variables is; None without those of TorchTPU."""
    addresses = tuple(filter(None, variables.get(ADDRESSES, "").split(",")))
    per_host = variables.get("TORCH_TPU_DEVICES_PER_HOST", "")
    if not addresses or not per_host:
        return None
    return Seat(variables["TPU_NAME"], int(variables["TPU_WORKER_ID"]), addresses, int(per_host))


def by_rank(seats: Sequence[Seat]) -> dict[str, list[str]]:
    """Addresses of the workers of each slice, by its name, in the order of their ranks.

    Args:
        seats: those of all workers, by rank; no more on a host than it has devices.
    """
    found = defaultdict(list)
    taken: Counter[tuple[str, int]] = Counter()
    for each in seats:
        host = each.slice_name, each.host
        found[each.slice_name].append(each.addresses[each.host * each.per_host + taken[host]])
        taken[host] += 1
    return dict(found)


def use(addresses: Mapping[str, Sequence[str]]) -> None:
    """Take the addresses of the slice that this process is in."""
    os.environ[ADDRESSES] = ",".join(addresses[os.environ["TPU_NAME"]])
