"""The known damage to a container's data: found at its start, by readers, or by the storage writer.

The list is for people; what is read is checked each time, whether its damage is known or not.
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
    """A container's damaged places; those of a segment that touch for the same reason are one. `unlisted` counts those
    the list had no room for. logs: log new ones; else whoever asks for the list reports them."""

    def __init__(self, container: int, *, logs: bool = True) -> None:
        self._container = container
        self._logs = logs
        self._by_segment: dict[str, list[Damage]] = {}
        self._count = 0
        self.unlisted = 0

    def all(self) -> list[Damage]:
        return [damage for damages in self._by_segment.values() for damage in damages]

    def note(self, error: DamagedDataError) -> None:
        known = self._by_segment.get(error.segment, [])
        begin, end = error.offset, error.end_offset
        if any(damage.offset <= begin and end <= damage.end_offset for damage in known):
            return
        touching = [each for each in known if each.reason == error.reason]
        touching = [each for each in touching if begin <= each.end_offset and each.offset <= end]
        if not touching and self._count >= DAMAGE_LISTED:
            self.unlisted += 1
            return
        for damage in touching:
            begin, end = min(begin, damage.offset), max(end, damage.end_offset)
        rest = [damage for damage in known if damage not in touching]
        self._by_segment[error.segment] = [*rest, Damage(error.segment, begin, end, error.reason)]
        self._count += 1 - len(touching)
        if not touching and self._logs:
            fields = {"container": self._container, "segment": error.segment}
            log.error("container %d: %s", self._container, error, extra=fields)
