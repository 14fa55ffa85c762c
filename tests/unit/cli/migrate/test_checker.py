"""What `kubectl tpu migrate` finds in programs, and what it leaves alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.scenes import Screen
from tpu_operator.cli import __main__ as command_line
from tpu_operator.cli.command import Exit
from tpu_operator.cli.migrate import idioms
from tpu_operator.cli.migrate.checker import Finding, check
from tpu_operator.cli.migrate.idioms import CHAPTERS, Kind
from tpu_operator.cli.migrate.source import Source, UnreadableError, notebook

if TYPE_CHECKING:
    from pathlib import Path

NAMES = idioms.named(Kind.NAME)


def found(text: str) -> list[Finding]:
    return check(Source("train.py", text))


def used(text: str) -> list[tuple[str, str]]:
    """Uses, as they are written and as they are meant, without the imports."""
    return [(one.found, one.name) for one in found(text) if "import" not in one.found]


XM = "torch_xla.core.xla_model"


@pytest.mark.parametrize(
    ("imported", "written"),
    [
        ("import torch_xla.core.xla_model as xm", "xm.mark_step"),
        ("import torch_xla.core.xla_model", "torch_xla.core.xla_model.mark_step"),
        ("import torch_xla as tx", "tx.core.xla_model.mark_step"),
        ("import torch_xla", "torch_xla.core.xla_model.mark_step"),
        ("from torch_xla.core import xla_model", "xla_model.mark_step"),
        ("from torch_xla.core import xla_model as m", "m.mark_step"),
        ("from torch_xla.core.xla_model import mark_step", "mark_step"),
        ("from torch_xla.core.xla_model import mark_step as step", "step"),
        ("import torch_xla\nxm = torch_xla.core.xla_model", "xm.mark_step"),
        ("import torch_xla\nxm = torch_xla.core.xla_model\nstep = xm.mark_step", "step"),
        (
            "try:\n    import torch_xla.core.xla_model as xm\nexcept ImportError:\n    xm = None",
            "xm.mark_step",
        ),
    ],
)
def test_names_are_followed(imported: str, written: str) -> None:
    assert (written, f"{XM}.mark_step") in used(f"{imported}\ndef f():\n    {written}()\n")


def test_places_count_from_one_and_in_characters() -> None:
    text = 'import torch_xla as tx\nif True:\n    print("é", tx.sync())\n'
    (at,) = [one for one in found(text) if one.found == "tx.sync"]
    assert (at.file, at.line, at.column, at.cell) == ("train.py", 3, 16, None)


def test_an_import_in_a_function_is_of_that_function() -> None:
    text = """
def one():
    from torch_xla.core.xla_model import save
    save(1)
def other(save):
    save(2)
save(3)
"""
    assert [(one.line, one.found) for one in found(text)][1:] == [(4, "save")]


def test_an_argument_hides_a_name_of_outside() -> None:
    text = "import torch_xla.core.xla_model as xm\ndef f(xm):\n    xm.save(1)\ng = lambda xm: xm.save(2)\n"
    assert used(text) == []


def test_an_import_that_comes_later_counts_in_functions() -> None:
    assert used("def f():\n    xm.save(1)\nimport torch_xla.core.xla_model as xm\n")


def test_each_use_of_a_name_with_dots_is_one_finding() -> None:
    assert used("import torch_xla\ntorch_xla.core.xla_model.xla_device().index\n") == [
        ("torch_xla.core.xla_model.xla_device", f"{XM}.xla_device")
    ]


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ('model.to("xla")', '"tpu"'),
        ('torch.device("xla:1")', '"tpu"'),
        ('torch.compile(model, backend="openxla")', "torch.compile(model)"),
        ('if tensor.device.type == "xla": pass', '"tpu"'),
        ('dist.init_process_group("xla")', '"tpu_dist"'),
        ('dist.init_process_group(backend="xla")', '"tpu_dist"'),
        ('dist.new_group([0], backend="xla")', '"tpu_dist"'),
        ('os.environ["XLA_USE_BF16"] = "1"', "model.to(torch.bfloat16)"),
        ("if is_torch_xla_available(): pass", "torch.tpu.is_available()"),
        ("if transformers.utils.is_torch_xla_available(): pass", "torch.tpu.is_available()"),
    ],
)
def test_texts_and_questions(line: str, instead: str) -> None:
    assert [one.instead for one in found(f"import torch\n{line}\n")] == [instead]


def test_a_backend_is_one_only_in_the_call_itself() -> None:
    text = 'import torch\ndist.init_process_group("xla", init_method="xla://")\nx.to("xla")\n'
    assert [one.instead for one in found(text)] == ['"tpu_dist"', "", '"tpu"']


@pytest.mark.parametrize(
    "text",
    [
        "import jax\njax.jit(f, backend='xla')\n",
        "import torch\nxm.mark_step()\n",
        "import torch\n# xm.mark_step()\n'''xla_device'''\nprint('xlarge')\n",
        "from .torch_xla import mark_step\nmark_step()\n",
        "import torch_xlarge\ntorch_xlarge.sync()\n",
    ],
)
def test_what_is_not_torch_xla(text: str) -> None:
    assert found(text) == []


def test_what_the_table_does_not_have_is_said_to_be_unknown() -> None:
    (_, one) = found("import torch_xla.core.xla_model as xm\nxm.frobnicate()\n")
    assert (one.instead, one.gone) == ("", False)
    assert "the table does not" in one.note


def test_what_a_class_has_is_of_the_class() -> None:
    (_, one) = found("import torch_xla.distributed.spmd as xs\nxs.Mesh.from_str(text)\n")
    assert (one.found, one.instead) == ("xs.Mesh.from_str", NAMES["torch_xla.distributed.spmd.Mesh"].instead)


def test_names_that_come_by_a_star_cannot_be_followed() -> None:
    (one,) = found("from torch_xla.core.xla_model import *\nmark_step()\n")
    assert "cannot be followed" in one.note


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("*") and name != "torch_xla"])
def test_every_name_of_the_table_is_found(name: str) -> None:
    module, _, last = name.rpartition(".")
    (_, one) = found(f"from {module} import {last} as x\nx()\n")
    assert (one.name, one.instead, one.note) == (name, NAMES[name].instead, NAMES[name].note)


@pytest.mark.parametrize("name", [name[:-2] for name in NAMES if name.endswith("*")])
def test_every_module_of_the_table_is_found(name: str) -> None:
    (one, other) = found(f"import {name} as x\nx.anything()\n")
    assert one.note == other.note == NAMES[f"{name}.*"].note


def test_other_names_of_a_module_mean_the_same() -> None:
    for module in ("torch_xla.distributed.spmd.xla_sharding", "torch_xla.experimental.xla_sharding"):
        (_, one) = found(f"import {module} as xs\nxs.mark_sharding(t, mesh, spec)\n")
        assert one.instead.startswith("torch.distributed.tensor.distribute_tensor")


def test_the_table_says_each_thing_once_and_always_what_to_do() -> None:
    whole = [idiom for chapter in CHAPTERS for idiom in chapter.idioms]
    for kind in Kind:
        names = [name for name, _ in idioms.all_of(kind)]
        assert len(set(names)) == len(names)
    assert all(idiom.instead or idiom.note for idiom in whole)
    assert not any(idiom.instead and idiom.gone for idiom in whole)


class TestNotebooks:
    def cells(self, *cells: tuple[str, str | list[str]]) -> Source:
        body: list[dict[str, object]] = [
            {"cell_type": kind, "source": source, "metadata": {}} for kind, source in cells
        ]
        return notebook("train.ipynb", json.dumps({"nbformat": 4, "cells": body}))

    def test_names_go_from_cell_to_cell(self) -> None:
        source = self.cells(
            ("markdown", "# `xm.mark_step`"),
            (
                "code",
                ["%pip install torch_xla\n", "import torch\n", "from torch_xla.core import xla_model as m"],
            ),
            ("code", "%%bash\nls"),
            ("code", "await go()\n!ls\nm.mark_step()\nm?"),
        )
        assert [(one.cell, one.line, one.column, one.found) for one in check(source)] == [
            (2, 3, 1, "from torch_xla.core import xla_model as m"),
            (4, 3, 1, "m.mark_step"),
        ]

    def test_lines_are_those_of_the_cell_in_errors_too(self) -> None:
        with pytest.raises(UnreadableError, match=r"\(cell 2, line 2\)"):
            check(self.cells(("code", "x = 1"), ("code", "y = 2\nz = (")))

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [{"source": "x"}]}', '{"cells": [1]}'])
    def test_what_is_no_notebook(self, text: str) -> None:
        with pytest.raises(UnreadableError, match="not a notebook"):
            notebook("x.ipynb", text)


class TestCommand:
    def run(self, *words: str) -> tuple[int, str]:
        screen = Screen()
        return command_line.call(["migrate", *words], screen), screen.text

    def test_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_text("import torch\n")
        assert self.run(str(tmp_path)) == (Exit.DONE, "nothing of torch_xla in 1 file\n")

    def test_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "below").mkdir()
        (tmp_path / "below" / "b.ipynb").write_text(
            json.dumps({"cells": [{"cell_type": "code", "source": "import torch_xla"}]})
        )
        (tmp_path / "a.py").write_text("import torch\n")
        (tmp_path / "README.md").write_text("import torch_xla\n")
        code, text = self.run(str(tmp_path))
        assert code == Exit.BAD
        assert f"{tmp_path}/below/b.ipynb:cell 1:1:1: import torch_xla" in text
        assert "1 idiom of torch_xla in 1 of 2 files" in text

    def test_for_programs(self, tmp_path: Path) -> None:
        file = tmp_path / "a.py"
        file.write_text("import torch_xla as t\nt.device()\n")
        code, text = self.run(str(file), "-o", "json")
        report = json.loads(text)
        assert (code, report["files"], report["unreadable"]) == (Exit.BAD, 1, [])
        assert report["findings"][1] == {
            "file": str(file),
            "line": 2,
            "column": 1,
            "found": "t.device",
            "name": "torch_xla.device",
            "instead": 'torch.device("tpu")',
            "note": "each process has one device",
            "gone": False,
            "cell": None,
        }

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "No such file"),
            (b"print 'x'\n", "it is not Python: Missing parentheses"),
            (b"\xff\xfe\x00", "it is not UTF-8 text"),
            (b"x = 1\0\n", "it is not Python"),
        ],
    )
    def test_what_cannot_be_read(
        self, content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        good, bad = tmp_path / "a.py", tmp_path / "b.py"
        good.write_text("import torch_xla\n")
        if content is not None:
            bad.write_bytes(content)
        code, text = self.run(str(bad), str(good))
        assert code == Exit.USAGE
        assert f"error: {bad}: {message}" in capsys.readouterr().err
        assert f"{good}:1:1: import torch_xla" in text

    def test_nothing_of_the_program_runs(self, tmp_path: Path) -> None:
        file = tmp_path / "a.py"
        file.write_text(f"import torch_xla\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
        assert self.run(str(file))[0] == Exit.BAD
        assert not (tmp_path / "ran").exists()
