"""What others have written is text, wherever it ends."""

from __future__ import annotations

import pytest

from tpu_operator.cli.dashboard.markup import Markup, badge, join, section, table, tag, when

EVIL = "<script>alert(1)</script>\"'&\x1b[31m\x00"


def test_text_is_escaped_once_and_elements_are_not() -> None:
    inner = tag("b", EVIL)
    assert inner == "<b>&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;</b>"
    assert tag("p", inner) == f"<p>{inner}</p>"
    assert join([inner, [EVIL, None]]) == f"{inner}{inner[3:-4]}"


def test_values_of_attributes_cannot_end_them() -> None:
    assert tag("p", title='" onclick="alert(1)') == '<p title="&quot; onclick=&quot;alert(1)"></p>'


def test_what_is_put_together_by_hand_is_text_again() -> None:
    assert join([Markup("<b>") + EVIL]).startswith("&lt;b&gt;")


def test_attributes() -> None:
    found = tag("script", src="/a", defer=True, hidden=False, title=None, class_="x", aria_label="y")
    assert found == '<script src="/a" defer class="x" aria-label="y"></script>'
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert tag("line", x1=0, y1=0.5) == '<line x1="0" y1="0.5"></line>'


@pytest.mark.parametrize("href", ["javascript:alert(1)", "https://example.com", "//example.com", ""])
def test_links_lead_nowhere_else(href: str) -> None:
    with pytest.raises(ValueError, match="a link leads to"):
        tag("a", "x", href=href)


def test_what_is_empty_is_not_there() -> None:
    assert table(("A",), []) == ""
    assert section("Title", table(("A",), [])) == ""
    assert when(None) == ""


def test_states_that_nobody_knows_have_a_class_of_ours() -> None:
    assert badge('Running" onload="x') == ('<span class="badge unknown">Running&quot; onload=&quot;x</span>')
