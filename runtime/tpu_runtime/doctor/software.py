"""Packages of the interpreter that the job's processes run in, read from files: nothing is imported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from tpu_runtime.doctor.host import Finding, Severity
from tpu_runtime.frameworks.torchtpu import tcmalloc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpu_runtime.doctor.host import Host

KNOWN_GOOD = {
    "torch": "2.13.0",
    "torch-tpu": "0.2.0",
    "libtpu": "0.0.52",
    "ray": "2.60.0",
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
}
"""Versions that were run together."""

_TORCH = ((2, 11), (2, 15))
"""The versions of torch for which TorchTPU 0.2.0 brings a compiled part."""
_LIBTPU = (0, 0, 50)
_SQUATTED = {
    "tpu-raiden-torch": "anybody's package under an old name of tpu-sync-torch",
}
_PLACEHOLDERS = ("vllm-torchtpu", "vllm-torchtpu-core")
_NOT_HERE = "the chart's runtime image has versions that were run together"


def packages(host: Host) -> dict[str, str]:
    """Versions of the packages that the job's interpreter finds, by normalised name.

    The names of their directories have both. To read the metadata of hundreds of packages, as
    importlib.metadata would, delays the start of each host by half as much again as all else that is done.
    """
    found: dict[str, str] = {}
    for site in _sites(host):
        for entry in sorted([*site.glob("*.dist-info"), *site.glob("*.egg-info")]):
            name, _, version = entry.stem.partition("-")
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return found


def _sites(host: Host) -> Iterator[Path]:
    """Directories of packages: PYTHONPATH, then those of the first `python3` on PATH."""
    for entry in filter(None, host.variables.get("PYTHONPATH", "").split(":")):
        yield host.path(entry)
    for prefix in dict.fromkeys([_home(host), "/usr/local", "/usr"]):
        yield from sorted(host.path(f"{prefix}/lib").glob("python3*/*-packages"))


def _home(host: Host) -> str:
    """Where an interpreter has its libraries."""
    if "/" in host.python:
        return str(Path(host.python).parent.parent)
    name = host.python or "python3"
    path = host.variables.get("PATH", "/usr/local/bin:/usr/bin").split(":")
    return next((str(Path(entry).parent) for entry in path if host.path(f"{entry}/{name}").exists()), "/usr")


def version(text: str) -> tuple[int, ...]:
    """The numbers at the start of a version, to compare."""
    return tuple(int(number) for number in re.findall(r"\d+", _plain(text))[:3])


def check_libtpu(host: Host) -> Iterator[Finding]:
    """`import torch` with TorchTPU and without libtpu aborts the process."""
    have = packages(host)
    chosen = host.variables.get("TPU_LIBRARY_PATH", "")
    if chosen and not host.path(chosen).exists():
        text = f"TPU_LIBRARY_PATH={chosen} does not exist"
        yield Finding(Severity.ERROR, text, "every TPU process aborts", "unset it, or correct it")
    elif chosen:
        yield Finding(Severity.INFO, f"libtpu is {chosen}, by TPU_LIBRARY_PATH")
    elif "libtpu" in have:
        yield Finding(Severity.OK, f"libtpu {have['libtpu']}")
    elif "torch-tpu" in have:
        why = "`import torch` aborts the process"
        yield Finding(
            Severity.ERROR, "torch_tpu is installed, libtpu is not", why, "pip install libtpu==0.0.52"
        )
    elif "jax" in have and not host.emulated:
        why = "JAX falls back to the CPU without a word"
        yield Finding(Severity.WARNING, "libtpu is not installed", why, "pip install 'jax[tpu]'")
    else:
        yield Finding(Severity.INFO, "libtpu is not installed")


def check_versions(host: Host) -> Iterator[Finding]:
    """Versions that fit together."""
    have = packages(host)
    bad = [*_pairs(have), *_strangers(have)]
    yield from bad
    shown = ", ".join(f"{name} {have[name]}" for name in KNOWN_GOOD if name in have)
    other = [name for name, good in KNOWN_GOOD.items() if name in have and _plain(have[name]) != good]
    if other and not bad:
        text = f"{shown}; not tried: {', '.join(f'{name} {have[name]}' for name in other)}"
        yield Finding(Severity.INFO, text, "these were not run together", _NOT_HERE)
    elif not bad:
        yield Finding(Severity.OK, shown or "neither torch, JAX nor Ray")


def _plain(text: str) -> str:
    """A version without the name of its build."""
    return text.partition("+")[0]


def _pairs(have: Mapping[str, str]) -> Iterator[Finding]:
    torch, torch_tpu, libtpu = (have.get(name) for name in ("torch", "torch-tpu", "libtpu"))
    if torch_tpu and not _fits(torch):
        text = f"torch_tpu {torch_tpu} with torch {torch or 'missing'}"
        why = "its compiled parts are for torch 2.11 to 2.15: `import torch` fails"
        yield Finding(Severity.ERROR, text, why, "pip install torch==2.13.0 torch_tpu==0.2.0")
    if torch_tpu and libtpu and version(libtpu) < _LIBTPU:
        text = f"torch_tpu {torch_tpu} with libtpu {libtpu}"
        yield Finding(Severity.ERROR, text, "it needs libtpu 0.0.50 or newer", "pip install libtpu==0.0.52")
    if "jax" in have and have.get("jaxlib", have["jax"]) != have["jax"]:
        text = f"jax {have['jax']} with jaxlib {have['jaxlib']}"
        yield Finding(Severity.ERROR, text, "`import jax` may fail", f"pip install jaxlib=={have['jax']}")


def _fits(torch: Optional[str]) -> bool:
    return torch is not None and _TORCH[0] <= version(torch)[:2] <= _TORCH[1]


def _strangers(have: Mapping[str, str]) -> Iterator[Finding]:
    """Packages that are not what their names say."""
    for name, what in _SQUATTED.items():
        if name in have:
            remedy = f"pip uninstall {name}, and look at what it may have done"
            yield Finding(Severity.ERROR, f"{name} {have[name]} is installed", f"it is {what}", remedy)
    for name in _PLACEHOLDERS:
        if have.get(name) == "0.0.0":
            why = "pip installs this empty package on any Python but 3.12"
            yield Finding(Severity.ERROR, f"{name} 0.0.0 is a placeholder", why, "use Python 3.12")


def check_allocator(host: Host) -> Iterator[Finding]:
    """TorchTPU wants tcmalloc before anything else is loaded."""
    preload = host.variables.get("LD_PRELOAD", "")
    missing = [name for name in preload.split(":") if name.startswith("/") and not host.path(name).exists()]
    if missing:
        text = f"LD_PRELOAD names {', '.join(missing)}, which does not exist"
        yield Finding(Severity.WARNING, text, "every process of the container complains", "correct it")
    elif "tcmalloc" in preload or tcmalloc(host.root):
        yield Finding(Severity.OK, "tcmalloc is there")
    elif host.launcher == "torchrun" and not host.emulated:
        why = "host buffers are large and short-lived: copies to and from the chips are slower"
        yield Finding(
            Severity.WARNING, "no tcmalloc", why, "apt-get install libgoogle-perftools4 in the image"
        )
