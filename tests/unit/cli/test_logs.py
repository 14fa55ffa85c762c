"""Which hosts are meant, and how their lines are merged and shown."""

from __future__ import annotations

import argparse

import pytest

from tests.builders import job
from tests.unit.cli.scenes import COLOURED, PLAIN, Screen
from tpu_operator.cli.choose import Choice
from tpu_operator.cli.command import CommandError, Exit, span
from tpu_operator.cli.lines import Line, is_missing, merged, missing, parse, render, split
from tpu_operator.cli.logs import Printer, query

TWO_SLICES = job(tpu={"accelerator": "v5e", "topology": "4x4", "slices": 2}, head={"spec": {}})
T = "2026-11-30T12:00:0{}.5Z"


class TestChoice:
    def test_all_hosts_in_the_order_of_ranks_and_the_head_last(self) -> None:
        workers = [f"train-{index}-{host}" for index in range(2) for host in range(4)]
        assert Choice().pods(TWO_SLICES) == [*workers, "train-head"]

    def test_ranks_count_over_all_slices(self) -> None:
        assert Choice(ranks=(0, 5)).pods(TWO_SLICES) == ["train-0-0", "train-1-1"]

    def test_a_slice(self) -> None:
        assert Choice(slices=(1,)).pods(TWO_SLICES) == [f"train-1-{host}" for host in range(4)]

    @pytest.mark.parametrize(
        ("choice", "message"),
        [
            (Choice(ranks=(8,)), "--rank 8: TPUJob train has ranks 0 to 7"),
            (Choice(slices=(2,)), "--slice 2: TPUJob train has slices 0 to 1"),
            (Choice(ranks=(0,), slices=(1,)), "no host has both"),
        ],
    )
    def test_hosts_that_do_not_exist(self, choice: Choice, message: str) -> None:
        with pytest.raises(CommandError, match=message) as error:
            choice.pods(TWO_SLICES)
        assert error.value.code is Exit.USAGE

    def test_a_slice_that_does_not_exist(self) -> None:
        with pytest.raises(CommandError, match="v5e 3x3 is no slice that exists"):
            Choice().pods(job(tpu={"accelerator": "v5e", "topology": "3x3"}))


class TestLines:
    def test_the_time_is_taken_off(self) -> None:
        assert parse("a", f"{T.format(1)} step 1") == Line(T.format(1), "a", "step 1")
        assert parse("a", f"{T.format(1)} ") == Line(T.format(1), "a", "")

    def test_a_line_without_a_time_stays_whole(self) -> None:
        assert parse("a", "unable to retrieve container logs") == Line(
            "", "a", "unable to retrieve container logs"
        )

    def test_logs_are_merged_by_time_and_each_keeps_its_order(self) -> None:
        one = split("a", f"{T.format(1)} a1\n{T.format(3)} a2\n{T.format(3)} a3\n")
        other = split("b", f"{T.format(2)} b1\n{T.format(3)} b2\n")
        assert [line.text for line in merged([one, other])] == ["a1", "b1", "a2", "a3", "b2"]

    def test_prefixes(self) -> None:
        pods = ["train-0-0", "train-0-10"]
        line = Line(T.format(1), "train-0-0", "hi")
        assert render(line, pods, PLAIN, prefix=True, times=False) == "train-0-0  | hi\n"
        assert render(line, pods, PLAIN, prefix=False, times=True) == f"{T.format(1)} hi\n"
        assert render(line, pods, COLOURED, prefix=True, times=False) == "\x1b[36mtrain-0-0  |\x1b[0m hi\n"

    def test_a_host_alone_has_no_prefix(self) -> None:
        screen = Screen()
        Printer(screen, ["train-0-0"]).show(Line("", "train-0-0", "hi"))
        Printer(screen, ["train-0-0", "train-0-1"]).show(Line("", "train-0-1", "ho"))
        assert screen.text == "hi\ntrain-0-1 | ho\n"

    def test_a_log_that_is_not_there(self) -> None:
        assert is_missing([missing("a", "waits")])
        assert not is_missing(split("a", f"{T.format(1)} (no log: "))
        assert not is_missing([])


def test_parameters_of_requests() -> None:
    options = argparse.Namespace(container="main", tail=5, since=300, previous=True)
    assert query(options) == {
        "container": "main",
        "timestamps": "true",
        "tailLines": "5",
        "sinceSeconds": "300",
        "previous": "true",
    }


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400)]
)
def test_spans(text: str, seconds: int) -> None:
    assert span(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "0s", "-5m", "1.5h", "5 m", "5x"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 90s, 5m or 2h"):
        span(text)
