"""The TPU generations that GKE offers, as data.

Sources: the machine type and topology tables of GKE's cluster autoscaler, the environment rules of
its TPU device plugin, and the Cloud TPU pages of each generation. A new generation is one entry here;
the validation rules of the CRDs are generated from it.
"""

from dataclasses import dataclass

MULTI_HOST_CHIPS = 4
"""Chips per host of every multi-host slice; machines with 1 or 8 chips are single-host only."""

CUBE = 4
"""Edge of the cube that large 3D shapes are made of, in chips."""

MAX_DIMENSION = 256
"""Largest length of one dimension that GKE accepts in a topology."""

MAX_HOSTS = 16_384
"""Hosts that one job or role may have: seven pods of the largest generation."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What is common to all slices of one TPU generation."""

    name: str
    """Short name that users write."""

    accelerator: str
    """Value of the node label `cloud.google.com/gke-tpu-accelerator`."""

    type_prefix: str
    """Start of `TPU_ACCELERATOR_TYPE`."""

    cores_per_chip: int
    """TensorCores of a chip as the number in `TPU_ACCELERATOR_TYPE` counts them."""

    devices_per_chip: int
    """Devices that JAX and PyTorch see per chip."""

    topologies: tuple[str, ...]
    """Topologies offered by name."""

    single_host: tuple[str, ...]
    """Those of them that exist as one machine."""

    max_cubes: int = 0
    """For 3D: shapes of 4x4x4 cubes are offered up to this many; 0 for none (2D)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Both spellings of the accelerator, without repetition."""
        return tuple(dict.fromkeys((self.name, self.accelerator)))

    @property
    def max_chips(self) -> int:
        """Largest shape made of cubes, in chips; 0 for none."""
        return self.max_cubes * CUBE**3


_TOPOLOGIES_2D = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_SINGLE_HOST_2D = ("1x1", "2x2", "2x4")
_BELOW_A_CUBE = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")

GENERATIONS: tuple[Generation, ...] = (
    Generation(
        name="v4",
        accelerator="tpu-v4-podslice",
        type_prefix="v4",
        cores_per_chip=2,
        devices_per_chip=1,
        topologies=_BELOW_A_CUBE,
        single_host=("2x2x1",),
        max_cubes=64,
    ),
    Generation(
        name="v5e",
        accelerator="tpu-v5-lite-podslice",
        type_prefix="v5litepod",
        cores_per_chip=1,
        devices_per_chip=1,
        topologies=_TOPOLOGIES_2D,
        single_host=_SINGLE_HOST_2D,
    ),
    Generation(
        name="v5p",
        accelerator="tpu-v5p-slice",
        type_prefix="v5p",
        cores_per_chip=2,
        devices_per_chip=1,
        topologies=_BELOW_A_CUBE,
        single_host=("2x2x1",),
        # The whole pod. The documentation names 96 cubes as the largest job; larger ones are known to run.
        max_cubes=140,
    ),
    Generation(
        name="v6e",
        accelerator="tpu-v6e-slice",
        type_prefix="v6e",
        cores_per_chip=1,
        devices_per_chip=1,
        topologies=_TOPOLOGIES_2D,
        single_host=_SINGLE_HOST_2D,
    ),
    Generation(
        name="tpu7x",
        accelerator="tpu7x",
        type_prefix="tpu7x",
        cores_per_chip=2,
        devices_per_chip=2,
        topologies=("1x1x1", *_BELOW_A_CUBE),
        single_host=("1x1x1", "2x2x1"),
        max_cubes=144,
    ),
)


def find(accelerator: str) -> Generation | None:
    """Return the generation with this short name or GKE label value, or None for an unknown one."""
    return next((g for g in GENERATIONS if accelerator in g.names), None)
