"""Write docs/reasons.md: what each reason, cause and gate means and what helps, as `kubectl tpu why` says it.

Usage: python -m hack.reasons --write|--check PATH
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from hack import generated
from tpu_operator.cli.advice import BLOCKED, CAUSES, ENDS, GATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpu_operator.cli.advice import Advice

HEAD: Final = """# Reasons and causes

What each word in the status of a TPUJob or TPUInference means, and what to do, the likeliest first.
`kubectl tpu why NAME` says the same of the object at hand, with what is known of it.
What alerts mean is in [alerts.md](alerts.md), what follows a failure in [failures.md](failures.md).
"""
CHAPTERS: Final[tuple[tuple[str, str, Mapping[Any, Advice]], ...]] = (
    (
        "Why it does not run",
        "Reasons of the condition `Blocked` and of `status.pending`.",
        BLOCKED,
    ),
    ("What has failed", "Causes: `status.lastFailure.cause`, `status.restarts.byCause`.", CAUSES),
    ("Why a job has ended", "Reasons of the condition `Failed`.", ENDS),
    ("What a rollout waits for", "Gates: `status.rollout.hold.gate` of a TPUInference.", GATES),
)


def page() -> str:
    """The whole page."""
    return HEAD + "".join(line for chapter in CHAPTERS for line in _chapter(*chapter))


def _chapter(title: str, text: str, words: Mapping[Any, Advice]) -> Iterator[str]:
    yield f"\n## {title}\n\n{text}\n"
    seen: set[str] = {str(word) for _, _, others in CHAPTERS[: _place(title)] for word in others}
    for word, advice in words.items():
        # A word of two chapters would have one anchor twice.
        name = f"{word} (cause)" if str(word) in seen else str(word)
        yield f"\n### {name}\n\n{advice.meaning}\n\n"
        for number, remedy in enumerate(advice.remedies, 1):
            yield f"{number}. {remedy.replace('{job}', 'NAME')}\n"


def _place(title: str) -> int:
    return [name for name, *_ in CHAPTERS].index(title)


if __name__ == "__main__":
    sys.exit(generated.run(__doc__, lambda _: page()))
