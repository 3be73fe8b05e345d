"""What was decided about a stream's segments, and why: a log of its latest decisions, kept beside its records.

An entry is written before what it says is begun. So one may tell of a change that never came, because its controller
died or somebody else was faster, which `is_done` finds out; and no change is without its entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachetools import LRUCache
from msgspec.structs import replace

from nadi.controller.state.history import History
from nadi.controller.state.metadata import Metadata, StreamName
from nadi.controller.state.records import ScalingEntry
from nadi.controller.state.store import ABSENT
from nadi.errors import ConditionFailedError, ContentionError
from nadi.limits import SCALING_LOG_ENTRIES

_TRIES = 5  # after one that got no answer
_REMEMBERED = 100  # logs, up to 160 KB each


class ScalingLog:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._rings: LRUCache[str, dict[int, tuple[int, int]]] = LRUCache(_REMEMBERED)  # by slot: number, version

    async def add(self, name: StreamName, entries: Sequence[ScalingEntry]) -> None:
        """Add entries, all or none, of which only the latest SCALING_LOG_ENTRIES stay; they get their numbers here."""
        table = self._metadata.scalings(name)
        for _ in range(_TRIES):
            ring = self._rings.get(name.key)
            if ring is None:
                found = [record async for _, record in table.scan()]
                ring = {_slot(one.value.number): (one.value.number, one.version) for one in found}
            first = 1 + max((number for number, _ in ring.values()), default=0)
            numbered = [replace(entry, number=first + i) for i, entry in enumerate(entries)][-SCALING_LOG_ENTRIES:]
            versions = [ring[slot][1] if (slot := _slot(entry.number)) in ring else ABSENT for entry in numbered]
            records = [(f"{_slot(e.number)}", e, version) for e, version in zip(numbered, versions, strict=True)]
            self._rings.pop(name.key, None)
            try:
                stored = await table.put_all(records, cached=False)
            except ConditionFailedError:
                continue
            for entry, record in zip(numbered, stored, strict=True):
                ring[_slot(entry.number)] = entry.number, record.version
            self._rings[name.key] = ring
            return
        raise ContentionError(f"the scaling log of {name}", _TRIES)

    async def entries(self, name: StreamName) -> list[ScalingEntry]:
        """The stream's entries, oldest first. One that was written again, after a try without answer, is there
        once."""
        found = [record.value async for _, record in self._metadata.scalings(name).scan()]
        told = {
            (entry.epoch, entry.segments) if entry.epoch >= 0 else entry.number: entry
            for entry in sorted(found, key=_number)
        }
        return sorted(told.values(), key=_number)


def is_done(entry: ScalingEntry, history: History) -> bool:
    """Whether what the entry says has happened."""
    if entry.epoch < 0 or 0 < entry.epoch <= history.first:  # nothing was to change, or what did is forgotten
        return True
    return entry.epoch <= history.newest and {*entry.segments} <= {*history.change(entry.epoch).removed}


def _slot(number: int) -> int:
    return number % SCALING_LOG_ENTRIES


def _number(entry: ScalingEntry) -> int:
    return entry.number
