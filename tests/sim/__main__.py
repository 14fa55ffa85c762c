"""Print the trace of a seed: python -m tests.sim SEED."""

from __future__ import annotations

import sys

from tests.sim import world


def main(seed: int) -> int:
    """Run the seed; the exit code says whether all went well."""
    world.TAIL = sys.maxsize
    try:
        trace = world.run(seed)
    except world.SimulationError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{trace.tail(world.TAIL)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
