"""How a batch is handled in spite of events that fail: tried again, narrowed, set aside. Pure.

A batch is handled in order. Of several events that failed together, the first half is tried at once, then the
second, and so on down to single events: so a single one that fails is found in as many steps as the batch can be
halved, and the others are done. An event that fails alone is tried again after a pause, up to `retries` times; then
it is given up. Nothing after an event is handled before that event is done or given up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from nadi.functions.handlers.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Piece:
    """Events `first` to `last` of the batch, to be handled next; attempt: of its first event, from 1."""

    first: int
    last: int
    attempt: int = 1

    def __len__(self) -> int:
        return self.last - self.first


class Verdict(Enum):
    """What to do after a failure. GIVE_UP: set the first event of `current` aside, then call `skip`."""

    NARROWED = "narrowed"
    PAUSE = "pause"
    GIVE_UP = "give up"


class Pieces:
    """The rest of a batch of `count` events.

    >>> pieces = Pieces(4, retries=0)
    >>> len(pieces.current)
    4
    >>> pieces.done(3)
    >>> pieces.current
    Piece(first=3, last=4, attempt=1)
    """

    def __init__(self, count: int, retries: int) -> None:
        self._rest = deque([Piece(0, count)] if count else [])
        self._retries = retries
        self._failures = 0  # of the first event, alone

    @property
    def current(self) -> Piece | None:
        """What to handle next; None at the end."""
        return self._rest[0] if self._rest else None

    def done(self, count: int) -> None:
        """The first `count` events of the current piece are done."""
        piece = self._rest.popleft()
        if count:
            self._failures = 0
        if count < len(piece):
            self._rest.appendleft(Piece(piece.first + count, piece.last, 1 if count else piece.attempt))

    def skip(self) -> int:
        """Give the first event up; return how often it was tried."""
        attempts = self._rest[0].attempt
        self.done(1)
        return attempts

    def failed(self, outcome: Outcome, *, redo: bool = False) -> Verdict:
        """Take note of a failure after those of the outcome's `done` events that `done` was called with.

        redo: what the outcome's `done` events gave was lost with it, so these are to be handled again, on their own.
        """
        failure, piece = outcome.failure, self._rest[0]
        assert failure is not None
        if redo and outcome.done:
            self._rest.popleft()
            at = piece.first + outcome.done
            self._rest.extendleft(
                reversed([Piece(piece.first, at, piece.attempt + 1), Piece(at, at + 1, piece.attempt + 1)])
            )
            if at + 1 < piece.last:
                self._rest.insert(2, Piece(at + 1, piece.last))
            return Verdict.NARROWED
        if failure.is_busy:
            self._rest[0] = Piece(piece.first, piece.last, piece.attempt + 1)
            return Verdict.PAUSE
        together = min(outcome.together, len(piece))
        if together > 1:
            self._rest.popleft()
            middle = piece.first + (together + 1) // 2
            halves = [Piece(piece.first, middle, piece.attempt + 1)]
            halves.append(Piece(middle, piece.first + together, piece.attempt + 1))
            if piece.first + together < piece.last:
                halves.append(Piece(piece.first + together, piece.last))
            self._rest.extendleft(reversed(halves))
            return Verdict.NARROWED
        self._failures += 1
        if failure.is_final or self._failures > self._retries:
            return Verdict.GIVE_UP
        self._rest.popleft()
        if len(piece) > 1:
            self._rest.appendleft(Piece(piece.first + 1, piece.last))
        self._rest.appendleft(Piece(piece.first, piece.first + 1, piece.attempt + 1))
        return Verdict.PAUSE
