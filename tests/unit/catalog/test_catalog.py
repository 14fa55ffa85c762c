"""The catalog against the table of every slice shape that GKE offers."""

import csv
import itertools
from pathlib import Path

import pytest

from tpu_operator.catalog import GENERATIONS, CatalogError, SliceShape, find, resolve

TABLE = Path(__file__).with_name("topologies.tsv")
ROWS = list(csv.DictReader(TABLE.read_text().splitlines(), delimiter="\t"))


def expected(row: dict[str, str]) -> tuple[object, ...]:
    numbers = tuple(int(row[key]) for key in ("chips", "hosts", "chips_per_host", "devices"))
    texts = ("accelerator_type", "chips_per_host_bounds", "host_bounds", "wrap")
    return (row["accelerator"], *numbers, *(row[key] for key in texts))


def found(shape: SliceShape) -> tuple[object, ...]:
    numbers = (shape.chips, shape.hosts, shape.chips_per_host, shape.hosts * shape.devices_per_host)
    texts = (shape.accelerator_type, shape.chips_per_host_bounds, shape.host_bounds, shape.wrap)
    return (shape.accelerator, *numbers, *texts)


def test_every_row_of_the_table_is_reproduced_from_label_and_short_name() -> None:
    assert len(ROWS) == 1051
    for row in ROWS:
        generation = find(row["accelerator"])
        assert generation is not None
        for name in generation.names:
            shape = resolve(name, row["topology"], int(row["chips_per_host"]))
            assert found(shape) == expected(row), row
            assert shape.generation == generation.name


def test_chips_per_host_is_needed_only_for_2x4() -> None:
    ambiguous = set()
    for row in ROWS:
        try:
            resolve(row["accelerator"], row["topology"])
        except CatalogError:
            ambiguous.add((row["accelerator"], row["topology"]))
    assert ambiguous == {("tpu-v5-lite-podslice", "2x4"), ("tpu-v6e-slice", "2x4")}


def test_no_shape_exists_beyond_the_table() -> None:
    lengths = (1, 2, 3, 4, 6, 8, 12, 14, 16, 20, 24, 64, 140, 256, 260, 512)
    sizes = [*itertools.product(lengths, repeat=2), *itertools.product(lengths, repeat=3)]
    listed = {(row["accelerator"], row["topology"]) for row in ROWS}
    for generation in GENERATIONS:
        for size in sizes:
            topology = "x".join(map(str, size))
            if (generation.accelerator, topology) not in listed:
                with pytest.raises(CatalogError, match="topology"):
                    resolve(generation.name, topology, 4)


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips_per_host", "hosts"),
    [
        ("v4", "2x2x1", None, 1),
        ("v4", "2x2x4", None, 4),
        ("v5e", "2x4", 4, 2),
        ("v5e", "2x4", 8, 1),
        ("v5e", "4x4", 4, 4),
        ("v5e", "1x1", None, 1),
        ("tpu7x", "1x1x1", None, 1),
        ("v5p", "16x20x28", 4, 2240),
    ],
)
def test_hosts_from_topology(accelerator: str, topology: str, chips_per_host: int | None, hosts: int) -> None:
    assert resolve(accelerator, topology, chips_per_host).hosts == hosts


def test_tpu7x_has_two_devices_per_chip() -> None:
    assert resolve("tpu7x", "2x2x1").devices_per_host == 8
    assert resolve("v5p", "2x2x1").devices_per_host == 4


def test_unknown_accelerator_is_trusted_when_chips_per_host_is_given() -> None:
    shape = resolve("tpu8i", "4x8x2", 4)
    assert (shape.generation, shape.accelerator, shape.chips, shape.hosts) == (None, "tpu8i", 64, 16)
    assert shape.devices_per_host == 4
    assert {shape.accelerator_type, shape.chips_per_host_bounds, shape.host_bounds, shape.wrap} == {None}


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips_per_host", "message"),
    [
        ("v5e", "", None, "topology: '' is no topology: write the chips in each dimension, such as \"4x4\""),
        ("v5e", "4x", None, "topology: '4x' is no topology"),
        ("v5e", "0x4", None, "topology: '0x4' is no topology"),
        ("v5e", "4x4\n", None, "is no topology"),
        ("v5e", "4x4x4", None, "topology: '4x4x4' does not exist on v5e: write one of 1x1, 2x2, 2x4"),
        ("v5p", "4x8x4", None, "'4x8x4' does not exist on v5p: .* A <= B <= C"),
        ("v4", "16x16x20", None, "at most 4096 chips"),
        ("v5e", "2x4", None, r"chipsPerHost: 2x4 on v5e is ambiguous: write 8 \(1 host\) or 4 \(2 hosts\)"),
        ("v5e", "2x4", 2, r"chipsPerHost: 2 does not fit 2x4 on v5e: write 8 \(1 host\) or 4 \(2 hosts\)"),
        ("v6e", "4x4", 8, r"chipsPerHost: 8 does not fit 4x4 on v6e: write 4 \(4 hosts\)"),
        ("v6e", "1x1", 4, r"chipsPerHost: 4 does not fit 1x1 on v6e: write 1 \(1 host\)"),
        ("v9", "4x4", None, "accelerator: 'v9' is unknown: write one of v4, v5e, v5p, v6e, tpu7x"),
        ("v9", "4x4", 3, "chipsPerHost: 3 does not divide the 16 chips of 4x4"),
        ("v9", "4x4", 32, "chipsPerHost: 32 does not divide"),
        ("v9", "4x4", 0, "chipsPerHost: 0 does not divide"),
    ],
)
def test_errors_name_the_field_the_value_and_what_to_write(
    accelerator: str, topology: str, chips_per_host: int | None, message: str
) -> None:
    with pytest.raises(CatalogError, match=message):
        resolve(accelerator, topology, chips_per_host)
