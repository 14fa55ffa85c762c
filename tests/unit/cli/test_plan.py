"""`tpu-operator plan`, and what both plans read from files."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.inference import image, inference, role
from tests.unit.cli.scenes import Screen
from tpu_operator import __main__ as program
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli.command import Exit
from tpu_operator.core.inference.forecast import of_specs, render
from tpu_operator.manifests import ManifestError, read_inference

if TYPE_CHECKING:
    from pathlib import Path

OLD = inference(engine=image("1"))
NEW = inference(engine=image("2"))


def write(path: Path, *documents: Any) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def wire(name: str = "qwen", **spec: Any) -> dict[str, Any]:
    roles = [role("prefill", 2), role("decode", 1)]
    body = {"model": {"name": "Qwen/Qwen3-32B"}, "engine": image("1"), "roles": roles} | spec
    meta = {"name": name, "annotations": {"a": "b"}}
    return {"apiVersion": "tpu-operator.dev/v1alpha1", "kind": "TPUInference", "metadata": meta, "spec": body}


def plan(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tpu-operator", "plan", *words])
    with pytest.raises(SystemExit) as ended:
        program.main()
    return int(ended.value.code or 0)


def test_from_one_file_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old.yaml", {"kind": "ConfigMap"}, wire())
    new = write(tmp_path / "new.yaml", wire(engine=image("2")))
    assert plan(monkeypatch, "-f", old, "-f", new) == 0
    assert capsys.readouterr().out.splitlines() == render(of_specs(OLD, NEW))
    assert plan(monkeypatch, "-f", old, "-f", new, "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["slices"] == [{"slice": "v5e 4x4", "now": 3, "most": 5, "end": 3, "spare": 2}]
    assert plan(monkeypatch, "-f", new) == 0
    assert "more slices in the end: 3 of v5e 4x4" in capsys.readouterr().out


def test_a_rollout_that_cannot_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck: dict[str, Any] = {
        "roles": [role("all", 1, "prefill-decode")],
        "rollout": {"maxSurge": 0, "maxUnavailable": 1},
    }
    old = write(tmp_path / "old.yaml", wire(**stuck))
    new = write(tmp_path / "new.yaml", wire(engine=image("2"), **stuck))
    assert plan(monkeypatch, "-f", old, "-f", new) == 1
    assert "then waits (Surge): maxSurge of all is 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("documents", "words", "message"),
    [
        ([wire()], ["--name", "other"], "has no TPUInference other"),
        ([{"kind": "Pod"}], [], "has no TPUInference of tpu-operator.dev/v1alpha1"),
        ([wire(), wire("other")], [], "has 2 TPUInferences: say which is meant, of qwen, other"),
        ([wire(replicass=2)], [], "spec.replicass: Extra inputs are not permitted"),
        ([wire(roles=[role("decode", tpu={"accelerator": "v5e", "topology": "3x3"})])], [], "v5e"),
        ([wire(replicas="two")], [], "spec.replicas: "),
    ],
)
def test_files_that_make_no_sense(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    documents: list[Any],
    words: list[str],
    message: str,
) -> None:
    path = write(tmp_path / "file.yaml", *documents)
    assert plan(monkeypatch, "-f", path, *words) == 2
    assert message in capsys.readouterr().err


def test_two_objects_and_three_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = write(tmp_path / "one.yaml", wire()), write(tmp_path / "two.yaml", wire("other"))
    assert plan(monkeypatch, "-f", one, "-f", other) == 2
    assert "qwen and other are two TPUInferences" in capsys.readouterr().err
    assert plan(monkeypatch, "-f", one, "-f", one, "-f", one) == 2
    assert "an old one and a new one" in capsys.readouterr().err


def test_what_comes_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(yaml.safe_dump(wire())))
    assert read_inference("-").metadata.name == "qwen"


@pytest.mark.parametrize(("text", "message"), [("a: [", "is no YAML"), (None, "cannot be read")])
def test_what_is_no_file(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "file.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ManifestError, match=message):
        read_inference(str(path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing is said to plan"),
        (["-f", "nope.yaml"], "nope.yaml cannot be read"),
        (["qwen", "-f", "x", "--to-revision", "1"], "leave one of them out"),
    ],
)
def test_plans_of_kubectl_that_say_nothing(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.call(["rollout", "plan", *words], Screen()) == Exit.USAGE
    assert message in capsys.readouterr().err
