"""The same questions asked of a speech in plain Python, without an index."""

from __future__ import annotations

import re
from collections.abc import Callable

from examples.plays.speeches import Speech

_WORD = re.compile(r"[^\W_]+")
APART = 8


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _near(speech: Speech, one: str, other: str) -> bool:
    found = words(speech.text)
    places, others = ([at for at, word in enumerate(found) if word == wanted] for wanted in (one, other))
    return any(0 < abs(at - by) <= APART for at in places for by in others)


def _begins(speech: Speech, start: str) -> bool:
    return any(word.startswith(start) for word in words(speech.text))


def _has(speech: Speech, *wanted: str) -> bool:
    return set(wanted) <= set(words(speech.text))


QUESTIONS: dict[str, Callable[[Speech], bool]] = {
    "text:ghost": lambda one: _has(one, "ghost"),
    f'text:"crown king"~{APART}': lambda one: _near(one, "crown", "king"),
    'text:"my kingdom for a horse"': lambda one: " my kingdom for a horse " in f" {' '.join(words(one.text))} ",
    "text:(love -death) speaker:ROMEO": lambda one: one.speaker == "ROMEO" and _love(one),
    'text:murd* play:"Macbeth"': lambda one: one.play == "Macbeth" and _begins(one, "murd"),
    "speaker:(HAMLET OR GHOST)": lambda one: one.speaker in ("HAMLET", "GHOST"),
}
STANDING = {"ghost": "text:ghost", "crown-near-king": f'text:"crown king"~{APART}'}


def _love(speech: Speech) -> bool:
    return _has(speech, "love") and not _has(speech, "death")


def scanned(question: str, speech: Speech) -> bool:
    """Whether a speech fits one of the questions."""
    return QUESTIONS[question](speech)
