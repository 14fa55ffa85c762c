"""The command line itself: words, exit codes, errors, completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.scenes import Screen
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli.command import Exit, job_name
from tpu_operator.cli.completion import answer, candidates
from tpu_operator.cli.server import explain, reasons
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    from pathlib import Path

PARSERS = command_line.parsers()[1]


def run(*words: str) -> int:
    try:
        return command_line.call(words, Screen())
    except SystemExit as error:
        return int(error.code or 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["statsu"], "invalid choice: 'statsu'"),
        (["status"], "the following arguments are required: NAME"),
        (["status", "pod/train"], "write a name, tpujob/NAME or tpuinference/NAME"),
        (["restart", "tpui/qwen"], "write the name of a TPUJob, or tpujob/NAME"),
        (["rollout"], "the following arguments are required: ACTION"),
        (["rollout", "pause", "tpujob/train"], "write the name of a TPUInference, or tpuinference/NAME"),
        (["wait", "train", "--for", "runing"], "write running, suspended"),
        (["logs", "train", "--rank", "one"], "write a number from 0 on"),
        (["status", "train", "--", "ls"], "status takes nothing after `--`: ls"),
        (["status", "train", "--outp", "json"], "unrecognized arguments"),
    ],
)
def test_wrong_command_lines(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == Exit.USAGE
    said = capsys.readouterr().err
    assert message in said
    assert "--help" in said


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in PARSERS:
        assert run(*name.split(), "--help") == 0
        assert f"kubectl tpu {name}" in capsys.readouterr().out


def test_no_way_to_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert run("status", "train", "--kubeconfig", str(tmp_path / "nope")) == Exit.UNREACHABLE
    said = capsys.readouterr().err
    assert f"kubeconfig {tmp_path / 'nope'} cannot be used" in said
    assert "kubectl config get-contexts" in said


def test_a_server_that_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(
        """
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {}}]
"""
    )
    assert run("status", "train", "--kubeconfig", str(file)) == Exit.UNREACHABLE
    assert "the API server does not answer (ClientConnectorError): GET" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "name"),
    [("train", "train"), ("tpujob/train", "train"), ("tpujob.tpu-operator.dev/train", "train")],
)
def test_names_as_kubectl_prints_them(text: str, name: str) -> None:
    assert job_name(text) == name


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (0, Exit.UNREACHABLE, "kubectl version"),
        (401, Exit.REFUSED, "log in again"),
        (403, Exit.REFUSED, "ask for the role"),
        (404, Exit.NOT_FOUND, "doctor"),
        (422, Exit.REFUSED, ""),
    ],
)
def test_answers_of_the_server(status: int, code: Exit, advice: str) -> None:
    error = explain(ApiError(status, "Reason", "what it says"))
    assert error.code is code
    assert "what it says" in str(error)
    assert advice in error.advice


def test_a_refusal_of_several_fields_has_a_line_for_each() -> None:
    message = 'TPUJob "x" is invalid: [spec.tpu.topology: Invalid value: bad, write it, spec.run: Required]'
    assert list(reasons(message)) == [
        'TPUJob "x" is invalid:',
        "spec.tpu.topology: Invalid value: bad, write it",
        "spec.run: Required",
    ]
    assert list(reasons("simple")) == ["simple"]


class TestCompletion:
    def words(self, *typed: str) -> list[str]:
        found = candidates(typed, PARSERS)
        assert not isinstance(found, str), found
        return [word for word, _ in found]

    def test_commands(self) -> None:
        assert self.words("") == list(dict.fromkeys(name.partition(" ")[0] for name in PARSERS))
        assert self.words("re") == ["restart", "resume"]
        assert self.words("rollout", "re") == ["resume", "restart"]
        assert self.words("rollout", "-n", "x", "nonsense", "") == []

    def test_options(self) -> None:
        assert "--follow" in self.words("logs", "train", "--")
        assert self.words("logs", "--fai") == ["--failed"]

    def test_values(self) -> None:
        assert self.words("run", "--accelerator", "v5") == ["v5e", "v5p"]
        assert self.words("run", "--accelerator", "v5p", "--topology", "2x2x") == ["2x2x1", "2x2x2", "2x2x4"]
        assert self.words("status", "train", "-o", "") == ["text", "json", "yaml"]
        assert self.words("wait", "train", "--for", "s") == ["suspended", "succeeded", "serving", "stopped"]
        assert self.words("topologies", "tpu") == ["tpu7x"]

    def test_names_of_jobs_are_asked_for(self) -> None:
        assert candidates(["restart", ""], PARSERS) == "jobs"
        assert candidates(["restart", "-n", "team-a", "tr"], PARSERS) == "jobs"
        assert candidates(["status", "tr"], PARSERS) == "both"
        assert candidates(["rollout", "status", "-n", "team-a", "qw"], PARSERS) == "inferences"
        assert self.words("rollout", "status", "qwen", "") == []
        assert self.words("status", "train", "") == []
        assert self.words("run", "") == []

    def test_files(self) -> None:
        assert candidates(["status", "--kubeconfig", ""], PARSERS) == "files"
        assert candidates(["rollout", "plan", "-f", ""], PARSERS) == "files"
        assert candidates(["run", "--", "py"], PARSERS) == "files"
        assert answer(["run", "--", "py"], PARSERS) == ":0\n"

    def test_what_kubectl_reads(self) -> None:
        *lines, directive = answer(["resu"], PARSERS).splitlines()
        assert lines == ["resume\tlet a suspended job run"]
        assert directive == ":4"

    def test_no_cluster_is_no_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        assert answer(["status", "--kubeconfig", str(tmp_path / "nope"), ""], PARSERS) == ":4\n"
