"""docs/quickstart.md, line by line, from a clean Python environment with the wheel in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.kube import ROOT

if TYPE_CHECKING:
    from tests.e2e.kube import Kube

PAGE = (ROOT / "docs" / "quickstart.md").read_text()
END = "-- end of command, exit code"
FAILS = ("kubectl tpu why large",)
"""Commands whose answer is bad."""


def commands() -> list[tuple[str, list[str]]]:
    """All commands of the page, each with the lines that it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found


def build_wheel(to: Path) -> None:
    """Build the wheel as a release does."""
    uv = shutil.which("uv") or str(ROOT / ".tools" / "uv" / "bin" / "uv")
    constraints = [f"--build-constraint={ROOT / 'requirements' / 'build.lock'}", "--require-hashes"]
    arguments = ["--quiet", "--wheel", f"--python={sys.executable}", *constraints, f"--out-dir={to}"]
    subprocess.run([uv, "build", *arguments, ROOT], check=True)


def run(lines: list[str], directory: Path, environment: dict[str, str]) -> list[tuple[str, int]]:
    """Type lines into a shell; what each prints, and its exit code."""
    script = "".join(f"{line}\ncode=$?; echo; echo {END} $code\n" for line in lines)
    done = subprocess.run(
        ["bash"],
        input=script,
        cwd=directory,
        env=environment,
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    parts = re.split(rf"\n{END} (\d+)\n", done.stdout)
    return list(zip(parts[::2], map(int, parts[1::2]), strict=False))


def as_shown(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, line.split("…"))))


def unsaid(shown: list[str], said: str) -> list[str]:
    """Lines of the page that a command has not printed; … stands for anything."""
    lines = [one.strip() for one in said.splitlines()]
    return [one for one in shown if not any(as_shown(one.strip()).fullmatch(line) for line in lines)]


def test_the_page(kube: Kube, tmp_path: Path) -> None:
    build_wheel(tmp_path)
    config = tmp_path / "kubeconfig"
    shutil.copy(kube.kubeconfig, config)
    change = ["config", f"--kubeconfig={config}", "set-context", "--current", f"--namespace={kube.namespace}"]
    kube.kubectl(*change)
    path = f"{kube.kubectl_binary.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    # The interpreter itself, outside of any environment.
    (tmp_path / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    environment = keep | {"KUBECONFIG": str(config), "PATH": f"{tmp_path}:{path}"}
    page = commands()
    answers = run([line for line, _ in page], tmp_path, environment)
    assert len(answers) == len(page)
    wrong = [
        f"$ {line}\n{said}\nexit code {code}, and not said: {missing}"
        for (line, shown), (said, code) in zip(page, answers, strict=True)
        if (missing := unsaid(shown, said)) or code != int(line in FAILS)
    ]
    assert not wrong, "\n".join(wrong)
