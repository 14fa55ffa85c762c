"""`tpu-doctor`: looks at a host and says what is wrong with it, why that matters, and what to do.

It never opens a chip, imports no framework, and ends within its time limit whatever hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Callable, Optional

from tpu_runtime import report
from tpu_runtime.doctor import devices, network, software, system, variables
from tpu_runtime.doctor.host import Finding, Host, Severity
from tpu_runtime.doctor.timed import within
from tpu_runtime.errors import LAUNCHER_ERROR
from tpu_runtime.frameworks.torchtpu import interpreter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["Finding", "Host", "Severity", "essentials", "examine", "main"]

Check = Callable[[Host], "Iterator[Finding]"]

CHECKS: Mapping[str, Check] = {
    "environment": variables.check_environment,
    "metadata": variables.check_metadata,
    "devices": devices.check_devices,
    "vfio": devices.check_vfio,
    "lockfile": devices.check_lock,
    "libtpu": software.check_libtpu,
    "versions": software.check_versions,
    "allocator": software.check_allocator,
    "shm": system.check_shm,
    "limits": system.check_limits,
    "memory": system.check_memory,
    "hugepages": system.check_huge_pages,
    "space": system.check_space,
    "clock": system.check_clock,
    "ports": network.check_ports,
    "dns": network.check_names,
}
EXIT_WARNINGS, EXIT_ERRORS = 1, 2
SECONDS = 10.0
"""For all checks together, which run side by side."""


def examine(
    host: Host, names: Collection[str] = tuple(CHECKS), seconds: float = SECONDS
) -> dict[str, list[Finding]]:
    """What the checks have found, in their order; one that hangs or breaks is a finding itself."""
    _ = host.env  # read once, before the threads do
    tasks = {name: partial(_run, check, host) for name, check in CHECKS.items() if name in names}
    answers = within(tasks, seconds, len(tasks))
    return {name: _answer(answers.get(name), seconds) for name in tasks}


def _run(check: Check, host: Host) -> list[Finding]:
    return list(check(host))


def essentials(host: Host) -> list[Finding]:
    """What the launcher has to know before it starts processes.

    These are traps that processes fall into without a word that leads anywhere.
    """
    found = (
        list(devices.check_devices(host))
        if host.emulated
        else [*software.check_libtpu(host), *system.check_shm(host)]
    )
    return [finding for finding in found if finding.severity >= Severity.WARNING]


def _answer(answer: object, seconds: float) -> list[Finding]:
    if isinstance(answer, list):
        return answer
    if isinstance(answer, Exception):
        return [Finding(Severity.WARNING, f"the check broke: {answer!r}", "nothing is known", "report it")]
    text = f"no answer within {seconds:.0f} s"
    return [
        Finding(Severity.WARNING, text, "what it asks hangs", "try again; look at mounts and the name server")
    ]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Examine this host, print what was found, and return the exit code."""
    options = _parse(arguments)
    skipped = {*options.skip, *(["dns"] if options.preflight else [])}
    started = time.time()
    host = Host(os.environ, python=interpreter([options.python]) if options.python else "")
    found = examine(host, [name for name in CHECKS if name not in skipped], options.timeout)
    worst = max((finding.severity for each in found.values() for finding in each), default=Severity.OK)
    print(_json(found, worst) if options.json else table(found, verbose=options.verbose))  # noqa: T201
    sys.stdout.flush()
    if not options.preflight:
        return _code(worst)
    if worst < Severity.ERROR:
        return 0
    text = f"preflight: {summary(found)}"
    report.leave(report.Report(LAUNCHER_ERROR, EXIT_ERRORS, started, text), os.environ)
    return EXIT_ERRORS


def _code(worst: Severity) -> int:
    return {Severity.ERROR: EXIT_ERRORS, Severity.WARNING: EXIT_WARNINGS}.get(worst, 0)


def _parse(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tpu-doctor",
        description="Say what is wrong with this host for TPU workloads.",
        epilog="exit code: 0 well, 1 warnings, 2 errors",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--verbose", action="store_true", help="reasons and remedies of notes too")
    parser.add_argument("--skip", action="append", default=[], choices=list(CHECKS), metavar="CHECK")
    parser.add_argument(
        "--python", default="", metavar="PATH", help="the job's interpreter (python3 on PATH)"
    )
    parser.add_argument("--timeout", type=float, default=SECONDS, metavar="SECONDS", help="for all checks")
    parser.add_argument(
        "--preflight",
        action="store_true",
        help="for an init container: names of peers are not looked up, warnings are no failure, and errors "
        "are left as the termination message",
    )
    return parser.parse_args(arguments)


def _json(found: Mapping[str, Sequence[Finding]], worst: Severity) -> str:
    findings = [
        {"check": name, **asdict(finding), "severity": finding.severity.name.lower()}
        for name, each in found.items()
        for finding in each
    ]
    return json.dumps({"v": 1, "severity": worst.name.lower(), "findings": findings}, indent=1)


def table(found: Mapping[str, Sequence[Finding]], *, verbose: bool = False) -> str:
    """What was found, for people: one line each, and below what is bad, why and what to do."""
    lines = []
    for name, each in found.items():
        for finding in each:
            lines.append(f"{finding.severity.name.lower():8} {name:12} {finding.found}")
            if finding.severity >= Severity.WARNING or verbose:
                lines += [f"{'':21} {label}: {text}" for label, text in _details(finding) if text]
    return "\n".join([*lines, _totals(found)])


def _details(finding: Finding) -> tuple[tuple[str, str], ...]:
    return ("why", finding.why), ("do", finding.remedy)


def _totals(found: Mapping[str, Sequence[Finding]]) -> str:
    severities = [finding.severity for each in found.values() for finding in each]
    errors, warnings = severities.count(Severity.ERROR), severities.count(Severity.WARNING)
    return f"{errors} errors, {warnings} warnings"


def summary(found: Mapping[str, Sequence[Finding]]) -> str:
    """All errors in one line, each with its remedy."""
    bad = [each for findings in found.values() for each in findings if each.severity is Severity.ERROR]
    return "; ".join(f"{finding.found} ({finding.remedy})" for finding in bad)
