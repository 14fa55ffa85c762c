"""What libtpu says of the chips of a host, in the text format of Prometheus: `python -m tpu_runtime.libtpu`.

It runs in the interpreter of the job's processes and asks libtpu's monitoring library
(`libtpu.sdk.tpumonitoring`). Formats are those that `get_metric(NAME).description()` of libtpu 0.0.52 tells.
There was no TPU to run this on: without chips, that library gives empty lists.
"""

from __future__ import annotations

import contextlib
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIX = "tpu_launch_libtpu_"
METRICS = {
    "duty_cycle_pct": "Time that a chip was executing in the last sample period, in percent.",
    "tensorcore_util": "Utilization of a core, in percent.",
    "hbm_util": "Bandwidth of a chip's HBM in use, in percent.",
    "hbm_capacity_total": "Bytes of HBM that a chip has.",
    "hbm_capacity_usage": "Bytes of HBM in use on a chip.",
    "ici_link_health": "Of a link: 0 healthy, 1-5 transient, 6-9 persistent minor problem, 10 not usable.",
    "tpu_throttle_score": "0 for a chip that is not throttled, 10 for one that is throttled by 100 %.",
    "hlo_queue_size": "Programs that wait for a core.",
    "hlo_execution_timing": "From queue to end of a program on a core, in microseconds.",
    "collective_e2e_latency": "Of collectives between slices, by size and kind, in microseconds.",
    "buffer_transfer_latency": "Of transfers between slices, by size, in microseconds.",
    "inbound_buffer_transfer_latency": "Of transfers from other slices, by size, in microseconds.",
    "host_to_device_transfer_latency": "By size, in microseconds.",
    "device_to_host_transfer_latency": "By size, in microseconds.",
    "host_compute_latency": "Of reductions on the host, by size, in microseconds.",
    "tcp_min_rtt": "Round trips between slices, in microseconds.",
    "tcp_delivery_rate": "Between slices, in Mbps.",
}
"""What libtpu is asked for, and what it is."""

_STATISTICS = ("mean", "p50", "p90", "p95", "p99.9")
_NOT_FOR_LABELS = str.maketrans(dict.fromkeys("'\"\\\n", ""))
_NUMBER = r"(\d+(?:\.\d+)?)"
_LABELLED = re.compile(rf"(.+): {_NUMBER}|(\d+)-{_NUMBER}")
"""`tray1.chip3.ici0.int: 0`; of the throttle score `3-0`, which is 0 for chip 3."""


def text(monitoring: Any) -> Iterator[str]:
    """All that libtpu says.

    Args:
        monitoring: its module `tpumonitoring`.
    """
    for name in METRICS:
        with contextlib.suppress(Exception):  # one that this libtpu does not have, or cannot read
            yield from lines(name, monitoring.get_metric(name).data())


def lines(name: str, rows: Iterable[str]) -> Iterator[str]:
    """One metric with all of its figures; nothing if there are none.

    Args:
        name: libtpu's name of it.
        rows: what libtpu gives. Rows of a format that is not documented are left out.
    """
    figures = [figure for index, row in enumerate(rows) for figure in _figures(index, row)]
    if figures:
        yield f"# HELP {PREFIX}{name} {METRICS[name]}\n# TYPE {PREFIX}{name} gauge\n"
        yield from (f"{PREFIX}{name}{{{labels}}} {figure:.12g}\n" for labels, figure in figures)


def _figures(index: int, row: str) -> Iterator[tuple[str, float]]:
    """Labels and figures of a row: one figure, or how many of them are distributed."""
    cells = [cell.strip() for cell in row.translate(_NOT_FOR_LABELS).split(",")]
    with contextlib.suppress(ValueError):
        if len(cells) == 1:
            match = _LABELLED.fullmatch(cells[0])
            of, figure = (group for group in match.groups() if group) if match else (str(index), cells[0])
            yield f'of="{of}"', float(figure)
        elif len(cells) - len(_STATISTICS) in {0, 1}:
            of = "".join(f'of="{cell}",' for cell in cells[: -len(_STATISTICS)])
            figures = [float(cell) for cell in cells[-len(_STATISTICS) :]]
            for statistic, figure in zip(_STATISTICS, figures):  # noqa: B905 - Python 3.9
                yield f'{of}statistic="{statistic}"', figure


if __name__ == "__main__":
    sys.stdout.write("".join(text(import_module("libtpu.sdk").tpumonitoring)))
