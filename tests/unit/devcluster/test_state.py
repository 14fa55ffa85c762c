from __future__ import annotations

from pathlib import Path

import pytest

from hack.devcluster.state import DevClusterError, Layout, Record, Shape


def test_clones_have_clusters_of_their_own() -> None:
    one, other = Layout("dev", Path("/a")), Layout("dev", Path("/b"))
    assert one.id != other.id
    assert one.netns != other.netns
    assert one.cgroup != other.cgroup


def test_kubeconfig_of_the_default_cluster_is_in_the_middle() -> None:
    assert Layout("dev", Path("/a")).kubeconfig == Path("/a/.devcluster/kubeconfig")
    assert Layout("ci", Path("/a")).kubeconfig == Path("/a/.devcluster/ci/kubeconfig")


@pytest.mark.parametrize("name", ["", "Dev", "a/b", "-a", "a-", "..", "a" * 31, "kubeconfig"])
def test_names_that_would_not_do_as_paths_are_refused(name: str) -> None:
    with pytest.raises(DevClusterError, match="cluster name"):
        Layout(name)


def test_record_survives_the_disk(tmp_path: Path) -> None:
    record = Record(Shape(2, 16, 1000), "10.202.0.1", "10.202.0.2")
    record.save(tmp_path / "record")
    assert Record.load(tmp_path / "record") == record
    assert record.server == "https://10.202.0.2:6443"


def test_negative_number_of_nodes_is_refused() -> None:
    with pytest.raises(DevClusterError, match="negative"):
        Shape(nodes=-1)
