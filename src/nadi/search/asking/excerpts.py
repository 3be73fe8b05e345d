"""The part of a text where most of a query's words are, and where they are in it."""

from __future__ import annotations

from dataclasses import dataclass

from nadi.display import Displayed
from nadi.limits import SEARCH_SNIPPET_CHARS
from nadi.search.analysis import analyzer
from nadi.search.query.bound import Bound, Close, Follow, Has, Starts, leaves


@dataclass(frozen=True, slots=True)
class Excerpt(Displayed):
    """found: where words that were asked for begin and end in `text`."""

    text: str
    found: tuple[tuple[int, int], ...]

    def marked(self, before: str, after: str) -> str:
        """The text with something before and after each word that was found.

        >>> Excerpt("no error here", ((3, 8),)).marked("*", "*")
        'no *error* here'
        """
        made, at = [], 0
        for start, end in self.found:
            made += [self.text[at:start], before, self.text[start:end], after]
            at = end
        return "".join([*made, self.text[at:]])


class Words:
    """The words of a field that a query asks for, not those that it excludes."""

    def __init__(self, bound: Bound, field: int) -> None:
        found = [one for one in leaves(bound, excluded=False) if one.field == field]
        self._words = {one.value for one in found if isinstance(one, Has)}
        self._words |= {word for one in found if isinstance(one, Follow | Close) for word in one.words}
        self._prefixes = tuple(one.prefix for one in found if isinstance(one, Starts))

    def excerpt(self, text: str) -> Excerpt:
        """The best part of a text; its start if none of the words is there."""
        places = [
            (token.char_offset_from, token.char_offset_to)
            for token in analyzer().pre_tokenize(text).tokens
            if token.text in self._words or (self._prefixes and token.text.startswith(self._prefixes))
        ]
        if len(text) <= SEARCH_SNIPPET_CHARS:
            return Excerpt(text, tuple(places))
        start = _best_start(text, places)
        end = min(start + SEARCH_SNIPPET_CHARS, len(text))
        return Excerpt(
            text[start:end], tuple((low - start, high - start) for low, high in places if start <= low and high <= end)
        )


def _best_start(text: str, places: list[tuple[int, int]]) -> int:
    """Where a part begins that has the most of these places, a little before the first of them, at a word's start."""
    best = (0, 0)
    last = 0
    for number, (start, _) in enumerate(places):
        last = max(last, number)
        while last + 1 < len(places) and places[last + 1][1] - start <= SEARCH_SNIPPET_CHARS * 3 // 4:
            last += 1
        if last + 1 - number > best[0]:
            best = (last + 1 - number, start)
    start = max(best[1] - SEARCH_SNIPPET_CHARS // 4, 0)
    if start:
        space = text.find(" ", start, best[1])
        start = space + 1 if space >= 0 else start
    return start
