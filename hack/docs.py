"""What `make docs` does beyond mkdocs: README.md is the first page, and files that pages link to come along.

On GitHub, pages link to files of the repository by relative paths; here, those files are part of the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
FILES: Final = "files"
"""Folder of the site for what is no page."""
PAGES: Final = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "AGENTS.md": "agents-file.md"}
"""Pages that are elsewhere in the repository, with their names in the site."""


def links(text: str) -> Iterator[str]:
    """Targets of the links of a page that are in the repository, without their anchors."""
    for match in LINK.finditer(text):
        yield match[1]


def home(path: Path) -> str:
    """Where something of the repository is in the site.

    Args:
        path: of a file or a folder, from the root of the repository.
    """
    if str(path) in PAGES:
        return PAGES[str(path)]
    if path.parts[0] == "docs":
        inside = path.relative_to("docs")
        return str(inside / "README.md" if (ROOT / path).is_dir() else inside)
    whole = ROOT / path
    return f"{FILES}/{path}/index.md" if whole.is_dir() else f"{FILES}/{path}"


def source(page: str) -> Path:
    """The file of the repository that a page of the site is made from."""
    back = {name: path for path, name in PAGES.items()}
    return Path(back.get(page, f"docs/{page}"))


def resolve(page: str, target: str) -> Path:
    """What a link means, from the root of the repository.

    Args:
        page: the page of the site that has the link.
        target: as it is written there.
    """
    return Path(os.path.normpath(source(page).parent / target))


def rewrite(text: str, page: str) -> str:
    """A page with its links as the site has them."""
    folder = Path(page).parent

    def new(match: re.Match[str]) -> str:
        return os.path.relpath(home(resolve(page, match[1])), folder)

    return LINK.sub(new, text)


def outside() -> Iterator[Path]:
    """All files and folders outside of docs/ that pages link to, and the pages that are there."""
    yield from map(Path, PAGES)
    pages = [*PAGES.values(), *(str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md")))]
    found = {resolve(page, link) for page in pages for link in links((ROOT / source(page)).read_text())}
    yield from sorted(path for path in found if path.parts[0] != "docs" and str(path) not in PAGES)


def listing(path: Path) -> str:
    """A page for a folder: its files, whole."""
    files = sorted(each for each in (ROOT / path).iterdir() if each.is_file())
    shown = (f"## {file.name}\n\n```{file.suffix[1:]}\n{file.read_text()}```\n" for file in files)
    return f"# {path}\n\n" + "\n".join(shown)


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs with the files of the site: adds those from outside."""
    # Only the environment of `make docs` has it.
    from mkdocs.structure.files import File  # type: ignore[import-not-found] # noqa: PLC0415

    for path in outside():
        whole, name = ROOT / path, home(path)
        if whole.is_dir():
            files.append(File.generated(config, name, content=listing(path)))
        elif whole.exists():
            files.append(File.generated(config, name, abs_src_path=str(whole)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs with each page."""
    return markdown if page.file.src_uri.startswith(FILES) else rewrite(markdown, page.file.src_uri)
