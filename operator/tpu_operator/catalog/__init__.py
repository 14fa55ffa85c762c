"""TPU generations and slice shapes: what a (accelerator, topology) pair means in chips and hosts.

Pure data and lookups. `generations` holds the table, `shapes` the arithmetic on it.
"""

from tpu_operator.catalog.generations import (
    CUBE,
    GENERATIONS,
    MAX_DIMENSION,
    MAX_HOSTS,
    MULTI_HOST_CHIPS,
    Generation,
    find,
)
from tpu_operator.catalog.shapes import CatalogError, SliceShape, expected_topology, resolve

__all__ = [
    "CUBE",
    "GENERATIONS",
    "MAX_DIMENSION",
    "MAX_HOSTS",
    "MULTI_HOST_CHIPS",
    "CatalogError",
    "Generation",
    "SliceShape",
    "expected_topology",
    "find",
    "resolve",
]
