"""What a reader has to tell its application besides events: checkpoints and resets.

A checkpoint is announced once, between two events; it is passed when the application asks for more, at the positions
of that moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from nadi.client.readergroup.reads import EventRead
from nadi.client.readergroup.state import GroupState


class Notices:
    """`passed`: by number, the positions at which checkpoints were passed that the group doesn't know of yet."""

    def __init__(self) -> None:
        self.passed: dict[int, dict[str, int]] = {}
        self._waiting: deque[EventRead] = deque()
        self._announced: dict[int, str] = {}  # checkpoints that the application is told of
        self._told: list[int] = []  # those it was told of last

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> EventRead:
        """The next, for the application."""
        notice = self._waiting.popleft()
        if notice.checkpoint is not None:
            self._told = [number for number, name in self._announced.items() if name == notice.checkpoint]
        return notice

    def pass_told(self, positions: Mapping[str, int]) -> bool:
        """The application asks for more, at these positions; whether it passes a checkpoint by that."""
        told, self._told = self._told, []
        self.passed |= {number: dict(positions) for number in told}
        return bool(told)

    def reset(self) -> None:
        """The group goes on from elsewhere; nothing else that waited matters."""
        self._told.clear()
        self._announced.clear()
        self._waiting = deque([EventRead(is_reset=True)])

    def follow(self, state: GroupState, reader: str) -> bool:
        """Announce what is new, and forget what the group knows; whether there is something new."""
        pending = {one.number: one for one in state.pending_for(reader)}
        self.passed = {number: at for number, at in self.passed.items() if number in pending}
        self._announced = {number: name for number, name in self._announced.items() if number in pending}
        new = [one for number, one in pending.items() if not one.is_silent and number not in self._announced]
        for one in new:
            self._announced[one.number] = one.name
            self._waiting.append(EventRead(checkpoint=one.name))
        return bool(new)
