"""What the kernel counts of processes that it killed for want of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tpu_runtime.memory import oom_kills

if TYPE_CHECKING:
    from pathlib import Path

V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


@pytest.mark.parametrize(
    ("own", "file", "content", "expected"),
    [
        ("0::/\n", "memory.events", V2, 2),
        ("0::/kubepods/pod1/abc\n", "kubepods/pod1/abc/memory.events", V2, 2),
        ("0::/kubepods/pod1/abc\n", "memory.events", V2, 2),
        ("4:memory:/docker/abc\n1:cpu:/\n", "memory/docker/abc/memory.oom_control", V1, 5),
        ("4:memory:/docker/abc\n", "memory/memory.oom_control", V1, 5),
        (None, "memory.events", V2, 2),
        ("0::/\n", "memory.events", "nothing of that\n", None),
        ("0::/\n", "other", "", None),
    ],
)
def test_cgroup_v1_and_v2(
    tmp_path: Path, own: str | None, file: str, content: str, expected: int | None
) -> None:
    if own is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(own)
    path = tmp_path / "sys/fs/cgroup" / file
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert oom_kills(tmp_path) == expected
