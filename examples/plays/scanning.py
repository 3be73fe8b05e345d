"""The example's questions in plain Python, without an index."""

from __future__ import annotations

import re
from collections.abc import Callable

from examples.plays.speeches import Speech

_WORD = re.compile(r"[^\W_]+")
APART = 8


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _near(speech: Speech, one: str, other: str) -> bool:
    all_words = words(speech.text)
    positions, others = ([at for at, word in enumerate(all_words) if word == searched] for searched in (one, other))
    return any(0 < abs(at - by) <= APART for at in positions for by in others)


def _begins(speech: Speech, start: str) -> bool:
    return any(word.startswith(start) for word in words(speech.text))


def _has(speech: Speech, *wanted: str) -> bool:
    return set(wanted) <= set(words(speech.text))


QUESTIONS: dict[str, Callable[[Speech], bool]] = {
    "text:ghost": lambda speech: _has(speech, "ghost"),
    f'text:"crown king"~{APART}': lambda speech: _near(speech, "crown", "king"),
    'text:"my kingdom for a horse"': lambda speech: " my kingdom for a horse " in f" {' '.join(words(speech.text))} ",
    "text:(love -death) speaker:ROMEO": lambda speech: speech.speaker == "ROMEO" and _love(speech),
    'text:murd* play:"Macbeth"': lambda speech: speech.play == "Macbeth" and _begins(speech, "murd"),
    "speaker:(HAMLET OR GHOST)": lambda speech: speech.speaker in ("HAMLET", "GHOST"),
}
STANDING = {"ghost": "text:ghost", "crown-near-king": f'text:"crown king"~{APART}'}


def _love(speech: Speech) -> bool:
    return _has(speech, "love") and not _has(speech, "death")


def scanned(question: str, speech: Speech) -> bool:
    """Return whether a speech matches one of the questions."""
    return QUESTIONS[question](speech)
