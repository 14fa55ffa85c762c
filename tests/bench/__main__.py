"""The benchmark: `python -m tests.bench`. See docs/benchmarks/README.md."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench import plot, report, scale, scenarios
from tests.bench.gangs import GANGS
from tests.bench.lab import RATES, ROOT, Lab, gang_nodes
from tests.bench.peers import JobSet, KubeRay, Lws, Peer
from tests.bench.results import Results
from tests.bench.subjects import Floor, Subject, TpuOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OUTPUT: Final = ROOT / "docs" / "benchmarks"
SUBJECTS: Final[dict[str, type[Subject]]] = {
    each.name: each for each in (Floor, TpuOperator, JobSet, Lws, KubeRay)
}


class Bench:
    """One run of the program.

    Args:
        options: its command line.
        save: keeps what was measured so far; a run takes long enough to be interrupted.
    """

    def __init__(self, options: argparse.Namespace, save: Callable[[Results], None]) -> None:
        self._options = options
        self._save = save
        self._began = time.monotonic()
        self._results = Results()

    async def run(self) -> None:
        """Measure all that is asked for."""
        lab = await Lab.open([*gang_nodes(), *scale.nodes()])
        try:
            await self._warm_up(lab)
            for rates in self._options.rates:
                await lab.set_rates(rates)
                for repetition in range(self._options.runs):
                    for name in self._options.subjects:
                        if repetition >= self._runs(SUBJECTS[name]):
                            continue
                        self._say(f"{rates} rates, run {repetition + 1}: {name}")
                        await self._measure(lab, SUBJECTS[name](lab), rates)
            await self._scale(lab)
        finally:
            await lab.close()

    def _runs(self, subject: type[Subject]) -> int:
        """Repetitions of a subject."""
        every: int = self._options.runs
        fewer: int | None = self._options.peer_runs if issubclass(subject, Peer) else None
        return every if fewer is None else min(fewer, every)

    async def _warm_up(self, lab: Lab) -> None:
        """The first requests to a new cluster are slower than any later ones."""
        subject, gang = Floor(lab), GANGS[256]
        await scenarios.create(lab, subject, gang)
        await scenarios.clear(lab, subject, gang)

    async def _measure(self, lab: Lab, subject: Subject, rates: str) -> None:
        await subject.start()
        await asyncio.sleep(scenarios.SETTLE)
        try:
            for hosts in sorted({*self._options.hosts} & {*subject.sizes}):
                gang = GANGS[hosts]
                self._add(f"create-{hosts}", subject, rates, await scenarios.create(lab, subject, gang))
                if hosts == self._options.restart:
                    metrics = await scenarios.restart(lab, subject, gang)
                    self._add(f"restart-{hosts}", subject, rates, metrics)
                await scenarios.clear(lab, subject, gang)
        finally:
            await subject.stop()

    async def _scale(self, lab: Lab) -> None:
        """Many jobs, which is about the operator alone."""
        await lab.set_rates("raised")
        for repetition in range(self._options.scale_runs):
            subject = TpuOperator(lab)
            await subject.start()
            try:
                if jobs := self._options.jobs:
                    self._say(f"{jobs} jobs, run {repetition + 1}")
                    found = await scale.crowd(lab, subject, jobs, self._options.idle_seconds)
                    self._add_all(found, subject)
                if jobs := self._options.finished:
                    self._say(f"{jobs} finished jobs, run {repetition + 1}")
                    self._add_all(await scale.finished(lab, subject, jobs), subject)
            finally:
                await subject.stop()

    def _add_all(self, found: dict[str, scenarios.Metrics], subject: Subject) -> None:
        for scenario, metrics in found.items():
            self._add(scenario, subject, "raised", metrics)

    def _add(self, scenario: str, subject: Subject, rates: str, metrics: scenarios.Metrics) -> None:
        self._results.add(scenario, subject.name, rates, metrics)
        self._save(self._results)
        self._say(f"  {scenario}: {metrics['ready']:.2f} s")

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        sys.stderr.write(f"{minutes:3}:{seconds:02} {text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, or only write the report anew."""
    options = _parser().parse_args(arguments)
    path = options.output / "results.json"
    results = Results.load(path)
    if not options.report_only:
        bench = Bench(options, lambda measured: results.replace(measured).save(path))
        asyncio.run(bench.run())
        results = Results.load(path)
    generated = report.markdown(results)
    readme = options.output / "README.md"
    readme.write_text(report.insert(readme.read_text(), generated))
    plot.draw(results, options.output / "ready.svg")
    sys.stdout.write(generated)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    add = parser.add_argument
    add("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), metavar="NAME", help="who")
    add("--hosts", nargs="*", type=int, choices=GANGS, default=list(GANGS), help="sizes of gangs")
    add("--restart", type=int, default=256, metavar="HOSTS", help="size of the gang that is restarted")
    add("--rates", nargs="+", choices=RATES, default=["raised"], help="of controller manager and scheduler")
    add("--runs", type=int, default=5, help="repetitions, each of all subjects (default: %(default)s)")
    add("--peer-runs", type=int, metavar="RUNS", help="repetitions of the peers (default: as the others)")
    add("--jobs", type=int, default=1000, help="of 4 hosts each, all running; 0 leaves them out")
    add("--finished", type=int, default=10_000, help="jobs that have long finished; 0 leaves them out")
    add(
        "--scale-runs",
        type=int,
        default=1,
        help="repetitions of --jobs and --finished (default: %(default)s)",
    )
    add("--idle-seconds", type=float, default=60.0, help="how long an idle operator is looked at")
    add("--output", type=Path, default=OUTPUT, help="directory of results.json, README.md and ready.svg")
    add("--report-only", action="store_true", help="measure nothing; write the report of results.json anew")
    return parser


if __name__ == "__main__":
    sys.exit(main())
