"""From an accelerator and a topology to the shape of a slice.

The arithmetic is that of GKE's device plugin: hosts = chips / chips per host, host bounds = topology /
chip bounds, and wrap-around links as its rules say.
"""

import math
import re
from dataclasses import dataclass

from tpu_operator.catalog.generations import (
    CUBE,
    GENERATIONS,
    MAX_DIMENSION,
    MULTI_HOST_CHIPS,
    Generation,
    find,
)

_TOPOLOGY = re.compile(r"[1-9][0-9]{0,2}(x[1-9][0-9]{0,2}){1,2}")
_WRAP_2D = 16
_CHIP_BOUNDS = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}


class CatalogError(ValueError):
    """A TPU request that names no slice which exists; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class SliceShape:
    """One slice: its size, and what the TPU runtime is told about it."""

    generation: str | None
    """Short name, such as "v5e"; None when the catalog does not know the accelerator."""

    accelerator: str
    """Value of the node label `cloud.google.com/gke-tpu-accelerator`."""

    topology: str
    chips: int
    hosts: int
    chips_per_host: int
    devices_per_chip: int

    accelerator_type: str | None
    """`TPU_ACCELERATOR_TYPE`; None, like the three below, for an unknown accelerator."""

    chips_per_host_bounds: str | None
    """`TPU_CHIPS_PER_HOST_BOUNDS`."""

    host_bounds: str | None
    """`TPU_HOST_BOUNDS`."""

    wrap: str | None
    """`TPU_TOPOLOGY_WRAP`."""

    @property
    def devices_per_host(self) -> int:
        """Devices that JAX and PyTorch see on one host."""
        return self.chips_per_host * self.devices_per_chip


def resolve(accelerator: str, topology: str, chips_per_host: int | None = None) -> SliceShape:
    """Look up the shape of a slice.

    Args:
        accelerator: a short name ("v5e") or a GKE label value ("tpu-v5-lite-podslice").
        topology: chips in each dimension, "4x4" or "2x2x4".
        chips_per_host: needed where the pair is ambiguous or the accelerator unknown.

    Raises:
        CatalogError: no such slice exists, or more than one and chips_per_host does not choose.
    """
    dimensions = _parse(topology)
    generation = find(accelerator)
    if generation is None:
        return _unknown(accelerator, topology, math.prod(dimensions), chips_per_host)
    if not _offered(generation, topology, dimensions):
        raise CatalogError(
            f"topology: {topology!r} does not exist on {accelerator}: write {expected_topology(generation)}"
        )
    return _known(generation, topology, dimensions, _choose(generation, topology, dimensions, chips_per_host))


def expected_topology(generation: Generation) -> str:
    """Say in words which topologies the generation offers."""
    named = ", ".join(generation.topologies)
    if not generation.max_cubes:
        return f"one of {named}"
    return (
        f"one of {named}, or AxBxC with A <= B <= C, all multiples of {CUBE} up to {MAX_DIMENSION} "
        f"and at most {generation.max_chips} chips"
    )


def _parse(topology: str) -> tuple[int, ...]:
    if not _TOPOLOGY.fullmatch(topology):
        raise CatalogError(
            f"topology: {topology!r} is no topology: write the chips in each dimension, "
            f'such as "4x4" (v5e, v6e) or "2x2x4" (v4, v5p, tpu7x)'
        )
    return tuple(int(length) for length in topology.split("x"))


def _offered(generation: Generation, topology: str, dimensions: tuple[int, ...]) -> bool:
    return topology in generation.topologies or (
        len(dimensions) == 3  # noqa: PLR2004
        and list(dimensions) == sorted(dimensions)
        and all(length % CUBE == 0 and length <= MAX_DIMENSION for length in dimensions)
        and math.prod(dimensions) <= generation.max_chips
    )


def _choose(generation: Generation, topology: str, dimensions: tuple[int, ...], asked: int | None) -> int:
    """Pick the chips per host from the machines that make up this topology."""
    chips = math.prod(dimensions)
    options = [chips] if topology in generation.single_host else []
    if chips > MULTI_HOST_CHIPS:
        options.append(MULTI_HOST_CHIPS)
    if asked is None and len(options) == 1:
        return options[0]
    if asked in options:
        return asked
    choices = " or ".join(f"{n} ({_hosts(chips // n)})" for n in options)
    if asked is None:
        raise CatalogError(f"chipsPerHost: {topology} on {generation.name} is ambiguous: write {choices}")
    raise CatalogError(f"chipsPerHost: {asked} does not fit {topology} on {generation.name}: write {choices}")


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"


def _known(gen: Generation, topology: str, dimensions: tuple[int, ...], chips_per_host: int) -> SliceShape:
    padded = (*dimensions, 1)[:3]
    bounds = _CHIP_BOUNDS[chips_per_host]
    chips = math.prod(dimensions)
    return SliceShape(
        generation=gen.name,
        accelerator=gen.accelerator,
        topology=topology,
        chips=chips,
        hosts=chips // chips_per_host,
        chips_per_host=chips_per_host,
        devices_per_chip=gen.devices_per_chip,
        accelerator_type=f"{gen.type_prefix}-{chips * gen.cores_per_chip}",
        chips_per_host_bounds=_join(*bounds),
        host_bounds=_join(*(length // bound for length, bound in zip(padded, bounds, strict=True))),
        wrap=_join(*(str(w).lower() for w in _wrap(dimensions))),
    )


def _wrap(dimensions: tuple[int, ...]) -> tuple[bool, ...]:
    """Tell which dimensions have wrap-around links; in 3D all or none."""
    if len(dimensions) == 2:  # noqa: PLR2004
        return (*(length == _WRAP_2D for length in dimensions), False)
    return (min(dimensions) >= CUBE,) * 3


def _join(*values: object) -> str:
    return ",".join(map(str, values))


def _unknown(accelerator: str, topology: str, chips: int, chips_per_host: int | None) -> SliceShape:
    """Trust the user where the catalog has no data; only the division is checked."""
    if chips_per_host is None:
        known = ", ".join(g.name for g in GENERATIONS)
        raise CatalogError(
            f"accelerator: {accelerator!r} is unknown: write one of {known} or their GKE label values, "
            f"or set chipsPerHost to the chips of one node"
        )
    if chips_per_host < 1 or chips % chips_per_host:
        raise CatalogError(
            f"chipsPerHost: {chips_per_host} does not divide the {chips} chips of {topology}: "
            f"write the chips of one node"
        )
    return SliceShape(
        generation=None,
        accelerator=accelerator,
        topology=topology,
        chips=chips,
        hosts=chips // chips_per_host,
        chips_per_host=chips_per_host,
        devices_per_chip=1,
        accelerator_type=None,
        chips_per_host_bounds=None,
        host_bounds=None,
        wrap=None,
    )
