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
    """A container's damaged places, which don't overlap; adjacent ones of a segment with the same reason are one.
    `unlisted` counts those the list had no room for. logs: log new ones; else whoever asks for the list reports them.
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
        """List the damage, and log it, unless it is already known."""
        known = sorted(self._by_segment.get(error.segment, []), key=lambda damage: damage.offset)
        is_news = False
        at = error.offset
        for damage in [*known, None]:
            end = error.end_offset if damage is None else min(damage.offset, error.end_offset)
            if at < end:
                is_news |= self._add(Damage(error.segment, at, end, error.reason))
            if damage is not None:
                at = max(at, damage.end_offset)
        if is_news and self._logs:
            fields = {"container": self._container, "segment": error.segment}
            log.error("container %d: %s", self._container, error, extra=fields)

    def _add(self, new: Damage) -> bool:
        """List a place that no other covers; return whether that makes one more."""
        damages = self._by_segment.get(new.segment, [])
        touching = [
            damage
            for damage in damages
            if damage.reason == new.reason and new.offset <= damage.end_offset and damage.offset <= new.end_offset
        ]
        if not touching and self._count >= DAMAGE_LISTED:
            self.unlisted += 1
            return False
        begin = min(damage.offset for damage in [new, *touching])
        end = max(damage.end_offset for damage in [new, *touching])
        rest = [damage for damage in damages if damage not in touching]
        self._by_segment[new.segment] = [*rest, Damage(new.segment, begin, end, new.reason)]
        self._count += 1 - len(touching)
        return not touching
