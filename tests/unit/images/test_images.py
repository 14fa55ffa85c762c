"""hack/images.sh against a buildah whose calls fail: what is tried again, and what is told at once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PINNED_PAGE = "Close_Fd sealing memfd copy: Device or resource busy"
BUILDAH = """#!/bin/sh
case "$*" in
  *" bud "*)
    echo bud >>calls
    if [ "$(wc -l <calls)" -le "$FAILURES" ]; then echo "$MESSAGE" >&2; exit 1; fi ;;
  *" push "*) for last; do :; done; tar=${last#docker-archive:}; echo image >"${tar%%:*}" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that decide what an image holds, and a buildah that does as the environment says."""
    for name in ["Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ["hack", "requirements"]:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ["operator", "runtime", "bin"]:
        (tmp_path / name).mkdir()
    for name, text in {
        "buildah": BUILDAH,
        "mmdebstrap": "#!/bin/sh\n",
        "docker": "#!/bin/sh\nexit 1\n",
    }.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def build(checkout: Path, failures: int, message: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(checkout / "cache"),
        "FAILURES": str(failures),
        "MESSAGE": message,
    }
    return subprocess.run(
        ["hack/images.sh", "operator"], cwd=checkout, env=env, text=True, capture_output=True, check=False
    )


def test_a_page_that_the_kernel_holds_is_worth_another_try(checkout: Path) -> None:
    result = build(checkout, failures=2, message=PINNED_PAGE)
    assert result.returncode == 0, result.stderr
    assert (checkout / "calls").read_text().split() == ["bud"] * 3
    assert (checkout / "dist/images/operator.tar").exists()


@pytest.mark.parametrize(("message", "calls"), [(PINNED_PAGE, 5), ("no space left on device", 1)])
def test_a_build_that_cannot_succeed_ends_and_says_why(checkout: Path, message: str, calls: int) -> None:
    result = build(checkout, failures=99, message=message)
    assert result.returncode != 0
    assert message in result.stderr
    assert (checkout / "calls").read_text().split() == ["bud"] * calls
