"""`kubectl tpu status`: from objects to the model, and from the model to text."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from tests.builders import NOW, World, job, node_pool
from tests.unit.cli.scenes import COLOURED, LATER, PLAIN, Screen, failed, restarted, running, seen, starting
from tpu_operator.cli.follow import Seen
from tpu_operator.cli.hosts import ranges
from tpu_operator.cli.status import draw
from tpu_operator.cli.tree import tree


def text(world: World, **options: bool) -> str:
    return "\n".join(draw(tree(seen(world), LATER), LATER, PLAIN, **options))


def test_a_job_that_runs() -> None:
    assert text(running()) == (
        "Name:      default/train\n"
        "Phase:     Running, 4/4 hosts ready\n"
        "TPU:       v5e 4x4, 1 slice of 4 hosts with 4 chips\n"
        "Started:   5m ago\n"
        "Restarts:  0, charged 0 of 3\n"
        "\n"
        "NAME           STATE    READY  RESTARTS  AGE    NODE      INFO\n"
        "train          Running  4/4    0         5m20s\n"
        "└─slice 0      Running  4/4    0\n"
        "  ├─train-0-0  Running  1/1    0         5m     pool-a-0\n"
        "  ├─train-0-1  Running  1/1    0         5m     pool-a-1\n"
        "  ├─train-0-2  Running  1/1    0         5m     pool-a-2\n"
        "  └─train-0-3  Running  1/1    0         5m     pool-a-3"
    )


def test_a_job_that_has_failed_says_who_was_first() -> None:
    shown = text(failed())
    assert "Phase:         Failed\n" in shown
    assert "Started:       5m ago, ended 4m58s ago\n" in shown
    assert "Last failure:  host 2 of slice 0 (pod train-0-2), attempt 0, 5m ago: UserError, exit c" in shown
    assert "└─train-0-2  Failed  0/1    0         5m     pool-a-2  UserError, exit code 1: Floating" in shown


def test_a_restart_is_counted() -> None:
    shown = text(restarted())
    assert "Restarts:      1 (UserError 1), charged 1 of 3\n" in shown
    assert "└─slice 0      Running  4/4    1\n" in shown


def test_hosts_that_are_not_up_say_why() -> None:
    shown = text(starting())
    assert "Waits:     ImagePullFailed for 5m: container main of pod train-0-1" in shown
    assert (
        "├─train-0-0  Starting  0/1    0         5m     pool-a-0  runs, but is at the launcher's gate"
        in shown
    )
    assert "├─train-0-1  Waiting   0/1" in shown


def test_a_job_that_no_operator_has_seen() -> None:
    shown = "\n".join(draw(tree(Seen(job()), NOW), NOW, PLAIN))
    assert "Phase:     Unknown\n           no operator has looked at the job yet" in shown


def test_a_spec_that_the_operator_has_not_seen_yet() -> None:
    world = running()
    world.patch_spec(suspend=True)
    assert "the operator has not seen the last change of the spec yet" in text(world)


def test_colours_are_those_of_states() -> None:
    shown = "\n".join(draw(tree(seen(running()), LATER), LATER, COLOURED))
    assert "\x1b[32mRunning\x1b[0m  4/4" in shown
    assert "\x1b[1mNAME\x1b[0m" in shown


def test_without_unicode_the_tree_is_of_ascii() -> None:
    shown = "\n".join(draw(tree(seen(running()), LATER), LATER, replace(PLAIN, unicode=False)))
    assert "`-slice 0" in shown
    assert "  |-train-0-0" in shown
    assert shown.isascii()


def test_lines_end_at_the_edge_of_the_terminal() -> None:
    lines = draw(tree(seen(starting()), LATER), LATER, replace(PLAIN, width=80))
    assert max(map(len, lines)) == 80
    assert any(line.endswith("...") for line in lines)


def test_two_slices_and_a_head() -> None:
    world = running(
        tpu={"accelerator": "v5e", "topology": "4x4", "slices": 2},
        head={"spec": {"containers": [{"name": "main", "image": "driver:1"}]}},
    )
    shown = text(world)
    assert "├─slice 0" in shown
    assert "│ └─train-0-3" in shown
    assert "├─slice 1" in shown
    assert "└─train-head" in shown


class TestLarge:
    """Hosts and slices with nothing to say about them share a line."""

    def test_hosts(self) -> None:
        world = running(tpu={"accelerator": "v5e", "topology": "16x16"})
        shown = text(world)
        assert "└─hosts 0-63  Running  64/64\n" in shown + "\n"
        assert len(shown.splitlines()) < 12
        assert "train-0-63" in text(world, everything=True)

    def test_a_host_with_something_to_say_has_its_line(self) -> None:
        world = running(tpu={"accelerator": "v5e", "topology": "16x16"})
        scheduled = {"type": "PodScheduled", "status": "True"}
        pull = {"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}
        world.set_pod("train-0-7", conditions=[scheduled], containerStatuses=[pull])
        shown = text(world.settle())
        assert "hosts 0-6,8-63" in shown
        assert "train-0-7" in shown

    def test_slices(self) -> None:
        world = running(tpu={"accelerator": "v5e", "topology": "2x2", "slices": 32})
        shown = text(world)
        assert "└─slices 0-31  Running  1/1    0                      32 slices alike" in shown


def test_the_model_is_the_json() -> None:
    screen = Screen()
    screen.show("json", tree(seen(failed()), LATER), list)
    found = json.loads(screen.text)
    assert found["phase"] == "Failed"
    assert found["lastFailure"]["where"] == "host 2 of slice 0 (pod train-0-2)"
    assert [host["pod"] for host in found["slices"][0]["hosts"]] == ["train-0-0", "train-0-2"]
    assert found["restarts"] == {"total": 0, "counted": 0, "limit": 0, "byCause": {}}


def test_a_host_without_a_pod_is_missing() -> None:
    world = running()
    del world.pods["train-0-1"]
    (shown,) = tree(seen(world), LATER).slices
    assert [host.state for host in shown.hosts] == ["Running", "Missing", "Running", "Running"]


def test_pods_that_are_on_their_way_out() -> None:
    world = World(job(), nodes=node_pool("pool-a"), keep_deleted=True).run()
    world.delete_pod("train-0-1")
    (shown,) = tree(seen(world), LATER).slices
    assert [host.state for host in shown.hosts][1] == "Terminating"


def test_nothing_changes_with_time_alone() -> None:
    """Without a terminal, `--watch` writes only what has changed."""
    world = seen(running())
    assert tree(world, LATER) == tree(world, LATER + timedelta(hours=1))


@pytest.mark.parametrize(
    ("numbers", "shown"), [([], ""), ([3], "3"), ([2, 0, 1], "0-2"), ([0, 2, 3, 7], "0,2-3,7")]
)
def test_ranges(numbers: list[int], shown: str) -> None:
    assert ranges(numbers) == shown


def test_models_can_be_written() -> None:
    assert msgspec.json.encode(tree(seen(restarted()), LATER))
