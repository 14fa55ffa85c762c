"""Every block of docs/sdk.md, in order, against a real API server with the operator beside it."""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs import ROOT

if TYPE_CHECKING:
    from hack.devcluster import Cluster

pytestmark = pytest.mark.usefixtures("operator")

PAGE = ROOT / "docs" / "sdk.md"
FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


async def test_the_page(
    team: str, control_plane: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    page = PAGE.read_text()
    scope: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        code = compile(block, str(PAGE), "exec", flags=FLAGS)
        done = eval(code, scope)
        if inspect.isawaitable(done):
            await done
    said = capsys.readouterr().out
    for shown in re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        assert shown in said
    assert "TPUJob team-a/wrong (" in said
    assert "docs/api.md describes each" in said
    assert "Running 4/4" in said
