"""Shell completion, as kubectl asks its plugins for it.

kubectl runs `kubectl_complete-tpu` with the words typed so far, the last of which is being completed, and
reads one candidate a line, with its description behind a tab, and at the end a colon with a number of Cobra's
that says what the shell should do else.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.catalog import GENERATIONS, find
from tpu_operator.cli.command import KINDS, CommandError, Parser, Place, inference_name, job_name, target
from tpu_operator.cli.server import connect
from tpu_operator.cli.wait import DELETED, GOALS, INFERENCE_GOALS
from tpu_operator.engine.client import ApiError
from tpu_operator.engine.resources import INFERENCES, TPUJOBS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpu_operator.engine.resources import Resource

NO_FILES: Final = 4
"""Cobra's word for: and no names of files."""
FILES: Final = 0
PATIENCE: Final = 2.0
"""Seconds for the names of objects: nobody waits longer for a Tab."""
NAMED: Final[Mapping[Any, str]] = {job_name: "jobs", inference_name: "inferences", target: "both"}
"""Arguments that are names of objects, by what reads them."""
RESOURCES: Final = {"jobs": (TPUJOBS,), "inferences": (INFERENCES,), "both": (TPUJOBS, INFERENCES)}
"""What may be named."""


def candidates(words: Sequence[str], parsers: Mapping[str, Parser]) -> list[tuple[str, str]] | str:
    """What the last word may become, each with a description; or the kind of thing that only others know.

    Args:
        words: all that was typed after `kubectl tpu`; the last one, perhaps empty, is not finished.
        parsers: the commands.
    """
    *before, last = words or [""]
    command = _command(before, parsers)
    if command not in parsers:
        return _starting(_next_words(command, parsers), last)
    if "--" in before:
        return "files"
    before = before[command.count(" ") :]
    actions = parsers[command].actions
    if before and (action := _option(actions, before[-1])) is not None and action.nargs != 0:
        return _values(action, last, before)
    if last.startswith("-"):
        return _starting(_options(actions), last)
    positional = [action for action in actions if not action.option_strings]
    return _values(positional[0], last, before) if positional and not _given(actions, before) else []


def _command(before: Sequence[str], parsers: Mapping[str, Parser]) -> str:
    """The command that was typed, of one word or of two; or what was typed, if it is none yet."""
    words = [word for word in before if not word.startswith("-")]
    return next((name for n in (2, 1) if (name := " ".join(words[:n])) in parsers), " ".join(words))


def _next_words(group: str, parsers: Mapping[str, Parser]) -> list[tuple[str, str]]:
    """Words that commands go on with, each with what the commands do."""
    start = f"{group} " if group else ""
    found: dict[str, str] = {}
    for name, parser in parsers.items():
        if name.startswith(start):
            word, _, more = name.removeprefix(start).partition(" ")
            found.setdefault(word, f"{word} {more}, …" if more else parser.description or "")
    return list(found.items())


def _option(actions: Iterable[argparse.Action], word: str) -> argparse.Action | None:
    return next((action for action in actions if word in action.option_strings), None)


def _options(actions: Iterable[argparse.Action]) -> list[tuple[str, str]]:
    return [(action.option_strings[-1], action.help or "") for action in actions if action.option_strings]


def _given(actions: Sequence[argparse.Action], before: Sequence[str]) -> bool:
    """Whether the positional argument is there: a word that belongs to no option."""
    words = before[1:]
    for number, word in enumerate(words):
        previous = _option(actions, words[number - 1]) if number else None
        if not word.startswith("-") and (previous is None or previous.nargs == 0):
            return True
    return False


def _values(action: argparse.Action, last: str, before: Sequence[str]) -> list[tuple[str, str]] | str:
    if action.choices:
        return _starting(((str(choice), "") for choice in action.choices), last)
    if action.type in NAMED and not action.option_strings:
        return NAMED[action.type]
    if action.dest == "accelerator":
        return _starting(((one.name, one.accelerator) for one in GENERATIONS), last)
    if action.dest == "topology":
        return _starting(((topology, "") for topology in _topologies(before)), last)
    if action.dest == "goal":
        return _starting(((goal, "") for goal in (*GOALS, *INFERENCE_GOALS, DELETED)), last)
    return "files" if action.dest in {"kubeconfig", "file"} else []


def _topologies(before: Sequence[str]) -> list[str]:
    """Topologies of the accelerator that was chosen before, or of all."""
    pairs = dict(itertools.pairwise(before))
    chosen = find(pairs.get("--accelerator", ""))
    generations = (chosen,) if chosen else GENERATIONS
    return list(dict.fromkeys(topology for one in generations for topology in one.topologies))


def _starting(found: Iterable[tuple[str, str]], start: str) -> list[tuple[str, str]]:
    return [(word, text) for word, text in found if word.startswith(start)]


def answer(words: Sequence[str], parsers: Mapping[str, Parser]) -> str:
    """What kubectl reads."""
    found = candidates(words, parsers)
    if found == "files":
        return f":{FILES}\n"
    if isinstance(found, str):
        found = asyncio.run(_names(_place(words), RESOURCES[found], words[-1]))
    lines = [f"{word}\t{text}" if text else word for word, text in found]
    return "\n".join([*lines, f":{NO_FILES}\n"])


def _place(words: Sequence[str]) -> Place:
    """The cluster that was chosen so far."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("-n", "--namespace", default="")
    parser.add_argument("--context", default="")
    parser.add_argument("--kubeconfig", default="")
    known, _ = parser.parse_known_args(list(words[:-1]))
    return Place(known.kubeconfig, known.context, known.namespace)


async def _names(place: Place, resources: Iterable[Resource], start: str) -> list[tuple[str, str]]:
    """Names of objects, as they were begun: with or without a kind; none where they cannot be had in time."""
    word, slash, _ = start.rpartition("/")
    wanted = [one for one in resources if not slash or one.kind == KINDS.get(word)]
    try:
        async with asyncio.timeout(PATIENCE), connect(place) as server:
            found = [(f"{word}{slash}{name}", one.kind) for one in wanted for name in await server.names(one)]
    except (CommandError, ApiError, TimeoutError):
        return []
    return _starting(found, start)
