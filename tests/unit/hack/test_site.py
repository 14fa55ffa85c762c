"""The site of the documentation: every page is in it, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hack import docs, reasons
from tests.docs import ROOT
from tpu_operator.api import BlockedReason, Cause, HoldGate

SITE = (ROOT / "mkdocs.yml").read_text()
PAGES = sorted(str(path.relative_to(docs.DOCS)) for path in docs.DOCS.rglob("*.md"))


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r"^ *- (\S+\.md)$", SITE, re.MULTILINE)
    there = {*PAGES, *docs.PAGES.values(), *(docs.home(path) for path in docs.outside())}
    assert sorted(named) == sorted(set(named))
    assert set(PAGES) | set(docs.PAGES.values()) <= set(named) <= there


@pytest.mark.parametrize("page", [*docs.PAGES.values(), *PAGES])
def test_every_link_leads_somewhere(page: str) -> None:
    text = (ROOT / docs.source(page)).read_text()
    missing = [link for link in docs.links(text) if not (ROOT / docs.resolve(page, link)).exists()]
    assert missing == []


def test_links_are_those_of_the_site() -> None:
    assert docs.rewrite("[a](docs/cli.md#run) [b](examples) [c](LICENSE) [d](#here)", "index.md") == (
        "[a](cli.md#run) [b](files/examples/index.md) [c](files/LICENSE) [d](#here)"
    )
    assert docs.rewrite("[a](../README.md) [b](cli.md) [c](https://a.b/c)", "install.md") == (
        "[a](index.md) [b](cli.md) [c](https://a.b/c)"
    )
    assert docs.rewrite("[a](../devcluster.md)", "benchmarks/README.md") == "[a](../devcluster.md)"
    assert docs.rewrite("[a](docs/adr)", "index.md") == "[a](adr/README.md)"


def test_a_folder_is_a_page_of_its_files() -> None:
    page = docs.listing(Path("examples"))
    assert page.startswith("# examples\n")
    assert "## minimal.yaml\n\n```yaml\n" in page


def test_every_reason_has_a_runbook() -> None:
    page = reasons.page()
    assert (ROOT / "docs" / "reasons.md").read_text() == page
    words = {str(word) for kind in (BlockedReason, Cause, HoldGate) for word in kind}
    assert words <= set(re.findall(r"^### (\w+)", page, re.MULTILINE))
    assert len(set(re.findall(r"^###? .*", page, re.MULTILINE))) == page.count("\n## ") + page.count("\n### ")
