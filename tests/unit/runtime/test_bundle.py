"""The launcher as one file, and on the oldest Python that it promises to run on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import RUNTIME, variables
from tpu_runtime import bundle

if TYPE_CHECKING:
    from tests.unit.runtime.conftest import Launch

OLDEST = (3, 9)


def oldest_python() -> str | None:
    """An interpreter of the oldest version, if this machine has one."""
    managed = sorted(Path.home().glob(".pyenv/versions/{}.{}.*/bin/python".format(*OLDEST)))
    return str(managed[-1]) if managed else shutil.which("python{}.{}".format(*OLDEST))


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "tpu-launch.pyz"
    bundle.main([str(path)])
    return path


def test_the_same_sources_make_the_same_bytes(pyz: Path) -> None:
    assert pyz.read_bytes() == bundle.bundle()


def said(pyz: Path, code: str) -> str:
    """What a program prints that finds the launcher in the file."""
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(pyz)!r}); {code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_nothing_is_compiled_where_it_starts(pyz: Path) -> None:
    # Code that came compiled knows its name in the archive; what Python compiles has the path of the archive.
    found = said(pyz, "from tpu_runtime import launch; print(launch.main.__code__.co_filename)")
    assert found == "tpu_runtime/launch.py\n"


def test_the_file_and_its_sources_are_one_build(pyz: Path) -> None:
    assert said(pyz, "from tpu_runtime import bundle; print(bundle.build())") == f"{bundle.build()}\n"


def test_it_needs_nothing_but_the_standard_library(launch: Launch, pyz: Path) -> None:
    prefix = [sys.executable, "-S", "-I", "-W", "error", str(pyz)]
    launcher = launch(
        variables(launcher="jax", PYTHONPATH=""), "sh", "-c", "echo $JAX_PLATFORMS", prefix=prefix
    )
    assert launcher.code() == 0, launcher.stderr
    assert launcher.stdout == b"cpu\n"


def test_it_is_executable_by_itself(launch: Launch, pyz: Path) -> None:
    launcher = launch(variables(PYTHONPATH=""), "sh", "-c", "exit 3", prefix=[str(pyz)])
    assert launcher.code() == 3, launcher.stderr


def test_it_runs_on_the_oldest_python(launch: Launch, pyz: Path, port: int) -> None:
    python = oldest_python()
    if python is None:
        pytest.skip("there is no Python {}.{} here".format(*OLDEST))
    prefix = [python, "-S", "-I", str(pyz)]
    hosts = [
        launch(
            variables(
                hosts=2,
                host=host,
                processes=2,
                PYTHONPATH="",
                TPU_LAUNCH_PORT=str(port) if host == 0 else "0",
                TPU_OPERATOR_COORDINATOR=f"localhost:{port}",
            ),
            "sh",
            "-c",
            "echo boom >&2; exit 3",
            prefix=prefix,
        )
        for host in (1, 0)
    ]
    for launcher in hosts:
        assert launcher.code() == 3, launcher.stderr
        assert launcher.message is not None
        assert launcher.message["error"] == "boom"


def test_the_doctor_is_in_it_and_runs_on_the_oldest_python(pyz: Path) -> None:
    python = oldest_python() or sys.executable
    command = [python, "-S", "-I", "-W", "error", str(pyz), "doctor", "--json", "--skip", "clock"]
    done = subprocess.run(command, env=variables(), capture_output=True, text=True, check=False)
    assert (done.returncode in {0, 1, 2}, done.stderr) == (True, "")
    assert '"check": "environment"' in done.stdout


def test_its_syntax_is_that_of_the_oldest_python() -> None:
    """Also where no such interpreter is there to try."""
    version = "py{}{}".format(*OLDEST)
    command = [
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--target-version",
        version,
        "--select",
        "F",
    ]
    subprocess.run([sys.executable, *command, str(RUNTIME / "tpu_runtime")], check=True)
