"""A log of the latest decisions about a stream's segments. An entry is written before what it says is begun: so one may
tell of a change that never came, which `is_done` finds out, and no change is without its entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter

from msgspec.structs import replace

from nadi.controller.state.history import History
from nadi.controller.state.metadata import Metadata, StreamName
from nadi.controller.state.records import ScalingEntry
from nadi.controller.state.store import ABSENT
from nadi.errors import ConditionFailedError, ContentionError
from nadi.limits import SCALING_LOG_ENTRIES

_TRIES = 5  # after one that got no answer


class ScalingLog:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def add(self, name: StreamName, entries: Sequence[ScalingEntry]) -> None:
        """Add entries, all or none, of which only the latest SCALING_LOG_ENTRIES stay; they get their numbers here."""
        table = self._metadata.scalings(name)
        for _ in range(_TRIES):
            ring = {_slot(held.value): held async for _, held in table.scan()}
            first = 1 + max((held.value.number for held in ring.values()), default=0)
            numbered = [replace(entry, number=first + i) for i, entry in enumerate(entries)][-SCALING_LOG_ENTRIES:]
            versions = [ring[slot].version if (slot := _slot(entry)) in ring else ABSENT for entry in numbered]
            changes = [(f"{_slot(entry)}", entry, version) for entry, version in zip(numbered, versions, strict=True)]
            with suppress(ConditionFailedError):
                await table.put_all(changes, cached=False)
                return
        raise ContentionError(f"the scaling log of {name}", _TRIES)

    async def entries(self, name: StreamName) -> list[ScalingEntry]:
        """The stream's entries, oldest first. One that was written again, after a try without answer, is there
        once."""
        found = [record.value async for _, record in self._metadata.scalings(name).scan()]
        told = {
            (entry.epoch, entry.segments) if entry.epoch >= 0 else entry.number: entry
            for entry in sorted(found, key=attrgetter("number"))
        }
        return sorted(told.values(), key=attrgetter("number"))


def is_done(entry: ScalingEntry, history: History) -> bool:
    """Whether what the entry says has happened."""
    if entry.epoch < 0 or 0 < entry.epoch <= history.first:  # nothing was to change, or what did is forgotten
        return True
    return entry.epoch <= history.newest and {*entry.segments} <= {*history.change(entry.epoch).removed}


def _slot(entry: ScalingEntry) -> int:
    return entry.number % SCALING_LOG_ENTRIES
