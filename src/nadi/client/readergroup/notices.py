"""What a reader reports to its application besides events: checkpoints and resets.

A checkpoint is announced once, between two events; it is passed when the application next asks for more, at the
positions reached then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from nadi.client.readergroup.event_reads import EventRead
from nadi.client.readergroup.state import GroupState


class Notices:
    """`passed`: by number, the positions at which checkpoints were passed that the group hasn't recorded yet."""

    def __init__(self) -> None:
        self.passed: dict[int, dict[str, int]] = {}
        self._waiting: deque[EventRead] = deque()
        self._announced: dict[int, str] = {}  # checkpoints to be reported to the application
        self._told: list[int] = []  # those reported last

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> EventRead:
        """Remove and return the next notice for the application."""
        notice = self._waiting.popleft()
        if notice.checkpoint is not None:
            self._told = [number for number, name in self._announced.items() if name == notice.checkpoint]
        return notice

    def pass_told(self, positions: Mapping[str, int]) -> bool:
        """Note that the application asks for more, at these positions; return whether that passes a checkpoint."""
        told, self._told = self._told, []
        self.passed |= {number: dict(positions) for number in told}
        return bool(told)

    def reset(self) -> None:
        """Announce that the group continues from elsewhere; waiting notices no longer matter."""
        self._told.clear()
        self._announced.clear()
        self._waiting = deque([EventRead(is_reset=True)])

    def follow(self, state: GroupState, reader: str) -> bool:
        """Announce new checkpoints, and forget what the group knows; return whether anything is new."""
        pending = {one.number: one for one in state.pending_for(reader)}
        self.passed = {number: at for number, at in self.passed.items() if number in pending}
        self._announced = {number: name for number, name in self._announced.items() if number in pending}
        new = [one for number, one in pending.items() if not one.is_silent and number not in self._announced]
        for one in new:
            self._announced[one.number] = one.name
            self._waiting.append(EventRead(checkpoint=one.name))
        return bool(new)
