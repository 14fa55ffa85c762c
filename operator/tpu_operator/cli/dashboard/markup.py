"""HTML that is escaped unless it was made here: what others have written is only ever text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.cli.text import clean

if TYPE_CHECKING:
    from datetime import datetime

VOID: Final = frozenset({"link", "meta"})
"""Elements that have no end."""


class Markup(str):
    """HTML that is right as it is. Only this module makes it from anything but itself."""

    __slots__ = ()


Child = str | Iterable["Child"] | None


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element.

    Args:
        name: of the element; never from others.
        children: text, which is escaped, elements, lists of them; None for nothing.
        attributes: their values are escaped; None and False leave one out, True is one without a value.
            Their names are written with underscores, and one at the end where Python needs it.

    Raises:
        ValueError: a link leads elsewhere than to this page.
    """
    href = attributes.get("href")
    if href is not None and (not str(href).startswith("/") or str(href).startswith("//")):
        raise ValueError(f"a link leads to {href}")
    head = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Markup(head if name in VOID else f"{head}{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Text and elements in a row."""
    return Markup("".join(map(_child, children)))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    return escape(clean(child)) if isinstance(child, str) else join(child)


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    key = name.rstrip("_").replace("_", "-")
    return f" {key}" if value is True else f' {key}="{escape(clean(str(value)))}"'


def when(time: datetime | None) -> Markup:
    """A time, which the page shows as an age; without scripts it is the time."""
    if time is None:
        return Markup("")
    return tag("time", f"{time:%Y-%m-%d %H:%M:%S} UTC", datetime=f"{time:%Y-%m-%dT%H:%M:%SZ}")


def table(head: Iterable[str], rows: Iterable[Iterable[Child]]) -> Markup:
    """A table; nothing where there are no rows."""
    body = [tag("tr", [tag("td", cell) for cell in row]) for row in rows]
    if not body:
        return Markup("")
    titles = tag("tr", [tag("th", title, scope="col") for title in head])
    whole = tag("table", tag("thead", titles), tag("tbody", body))
    return tag("div", whole, class_="scroll")


def section(title: str, *children: Child) -> Markup:
    """A part of a page; nothing where it is empty."""
    inside = join(children)
    return tag("section", tag("h2", title), inside) if inside else inside


def badge(state: str) -> Markup:
    """A state with its colour."""
    return tag("span", state, class_=f"badge {colour(state)}")


COLOURS: Final = {
    "good": {"Running", "Succeeded", "Serving", "Ready"},
    "bad": {"Failed", "Unavailable", "Degraded"},
    "busy": {"Restarting", "Starting", "Waiting", "Pending", "Rolling", "NotReady"},
    "gone": {"Terminating", "Missing", "Draining"},
    "idle": {"Suspended", "Stopped", "Spare"},
}


def colour(state: str) -> str:
    """Class of a state; states that are not known have one too."""
    return next((name for name, states in COLOURS.items() if state in states), "unknown")
