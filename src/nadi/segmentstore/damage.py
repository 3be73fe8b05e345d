"""What of a container's data is known to be damaged: found at its start, by readers, or by the storage writer.

It is a list for people; what is read is checked each time, whether its damage is known or not.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from nadi.errors import DamagedDataError
from nadi.limits import DAMAGE_LISTED

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [offset, end_offset) of a segment can't be read as they were stored."""

    segment: str
    offset: int
    end_offset: int
    reason: str


class KnownDamage:
    """A container's damaged places, those of a segment that touch as one; `unlisted` counts what found no room.

    logs: what is new is logged; else whoever asks for the list tells it.
    """

    def __init__(self, container: int, *, logs: bool = True) -> None:
        self._container = container
        self._logs = logs
        self._by_segment: dict[str, list[Damage]] = {}
        self._count = 0
        self.unlisted = 0

    def all(self) -> list[Damage]:
        return [damage for damages in self._by_segment.values() for damage in damages]

    def note(self, error: DamagedDataError) -> None:
        """List it, and log it, unless it is known."""
        damages = self._by_segment.get(error.segment, [])
        begin, end, reason = error.offset, error.end_offset, error.reason
        touching = [damage for damage in damages if damage.offset <= end and begin <= damage.end_offset]
        if any(damage.offset <= begin and end <= damage.end_offset for damage in touching):
            return
        if not touching:
            if self._count >= DAMAGE_LISTED:
                self.unlisted += 1
                return
            if self._logs:
                log.error("container %d: %s", self._container, error)
        for damage in touching:
            begin, end, reason = min(begin, damage.offset), max(end, damage.end_offset), damage.reason
            damages.remove(damage)
        damages.append(Damage(error.segment, begin, end, reason))
        self._by_segment[error.segment] = damages
        self._count += 1 - len(touching)
