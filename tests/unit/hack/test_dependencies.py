"""The list of dependencies and their licences."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack import dependencies

PAGE = Path(__file__).parents[3] / "docs" / "dependencies.md"


def test_the_page_is_up_to_date_and_all_licences_are_accepted() -> None:
    assert PAGE.read_text() == dependencies.page()


def test_what_only_other_platforms_have_is_left_out() -> None:
    lock = "pytest==9.2.0 \\\n    --hash=sha256:0\nno-such-package==1.0 ; sys_platform == 'win32' \\\n"
    assert dependencies.packages(lock) == [("pytest", "9.2.0")]


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("MIT", set()),
        ("Apache-2.0 AND (MIT OR BSD-3-Clause)", set()),
        ("GPL-3.0-only", {"GPL-3.0-only"}),
        ("MIT AND AGPL-3.0", {"AGPL-3.0"}),
        ("no licence", {"no licence"}),
    ],
)
def test_licences_that_are_not_on_the_list(expression: str, wrong: set[str]) -> None:
    assert dependencies.unaccepted(expression) == wrong


def test_a_package_under_another_licence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "ACCEPTED", {"MIT"})
    with pytest.raises(LookupError, match="is not on the list of accepted licences"):
        dependencies.page()
