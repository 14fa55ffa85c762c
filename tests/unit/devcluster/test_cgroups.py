from __future__ import annotations

from pathlib import Path

import pytest

from hack.devcluster.cgroups import parse_mounts, pass_on_controllers
from hack.devcluster.state import DevClusterError

V1 = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0
"""


def test_unified_hierarchy_alone() -> None:
    mount = Path("/sys/fs/cgroup")
    assert parse_mounts("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n") == (mount, [mount])


def test_unified_hierarchy_is_preferred_beside_others() -> None:
    tracking, every = parse_mounts(V1 + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n")
    assert tracking == Path("/sys/fs/cgroup/unified")
    assert {path.name for path in every} == {"unified", "memory", "pids"}


def test_pids_is_preferred_among_controllers() -> None:
    assert parse_mounts(V1)[0] == Path("/sys/fs/cgroup/pids")


def test_none_is_an_error() -> None:
    with pytest.raises(DevClusterError, match="no cgroup file system"):
        parse_mounts("proc /proc proc rw 0 0\n")


def test_controllers_of_a_unified_cgroup_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    pass_on_controllers(tmp_path)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"


def test_there_is_nothing_to_pass_on_in_other_cgroups(tmp_path: Path) -> None:
    pass_on_controllers(tmp_path)
    assert not list(tmp_path.iterdir())
