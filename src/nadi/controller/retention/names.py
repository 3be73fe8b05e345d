"""Bookmarks and slices as retention sees them: places that have a name, behind which nothing is truncated.

Clients keep them in a table of their scope, and anybody who may write that may write nonsense: what can't be read, or
names no place of the stream, protects nothing, and is logged once. What lies before the head is gone: a bookmark there
protects nothing either, while a slice does as long as some of it is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, cast

import msgspec
from cachetools import LRUCache

from nadi.controller.retention.cuts import Cuts
from nadi.controller.state.history import Cut
from nadi.controller.state.segments import Segments
from nadi.errors import InvalidArgumentError, InvalidStreamCutError, SegmentNotFoundError
from nadi.limits import RETENTION_NAMES_A_TURN, RETENTION_NAMES_MAX, TABLE_PAGE_MAX_ENTRIES
from nadi.model.place import Stored
from nadi.model.streamcut import StreamCut
from nadi.naming import BOOKMARKS_TABLE, TABLE_SUFFIX, segment_name
from nadi.throttled_log import Complaints
from nadi.wire import commands as wire
from nadi.wire.fields import TableEntry

log = logging.getLogger(__name__)

NameKind = Literal["bookmark", "slice"]
_CUTS = {"bookmark": 1, "slice": 2}


@dataclass(frozen=True, slots=True)
class Named:
    """A bookmark, or a slice that ends at `end`."""

    kind: NameKind
    name: str
    stream: str
    start: Cut
    end: Cut | None = None


class Names:
    """Reads the names of scopes; what it has decoded is kept while its entry stays as it is."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._known: LRUCache[tuple[str, bytes], tuple[int, Named | None]] = LRUCache(RETENTION_NAMES_MAX)
        self._complaints = Complaints(log, "%s protects nothing from retention")

    async def of_scope(self, scope: str) -> dict[str, list[Named]]:
        """By stream; InvalidArgumentError if there are too many."""
        found: dict[str, list[Named]] = {}
        count = 0
        async for entry in self._entries(segment_name(scope, BOOKMARKS_TABLE + TABLE_SUFFIX, 0)):
            count += 1
            if count > RETENTION_NAMES_MAX:
                raise InvalidArgumentError(
                    f"scope {scope} has more than {RETENTION_NAMES_MAX:,} bookmarks and slices: delete some"
                )
            key = scope, bytes(entry.key)
            known = self._known.get(key)
            if known is None or known[0] != entry.version:
                if count % RETENTION_NAMES_A_TURN == 0:
                    await asyncio.sleep(0)
                known = self._known[key] = entry.version, self._decoded(scope, key[1], bytes(entry.value))
            if known[1] is not None:
                found.setdefault(known[1].stream, []).append(known[1])
        return found

    async def _entries(self, table: str) -> AsyncIterator[TableEntry]:
        token = b""
        while True:
            command = wire.ReadTableEntries(
                self._segments.request_id(), table, "", TABLE_PAGE_MAX_ENTRIES, (token, b"", b"")
            )
            try:
                page = await self._segments.ask(command, wire.TableEntriesRead)
            except SegmentNotFoundError:
                return  # none was ever made
            if not page.entries:
                return
            for entry in page.entries:
                yield entry
            token = page.continuation_token

    def _decoded(self, scope: str, key: bytes, value: bytes) -> Named | None:
        kind, _, name = key.decode(errors="replace").partition("/")
        try:
            stored = msgspec.json.decode(value, type=Stored)
            cuts = [StreamCut.from_text(text) for text in stored.cuts]
            if len(cuts) != _CUTS.get(kind) or any((cut.scope, cut.stream) != (scope, stored.stream) for cut in cuts):
                raise InvalidStreamCutError("it is neither a bookmark nor a slice of one of the scope's streams")
        except (msgspec.MsgspecError, InvalidStreamCutError) as error:
            self._complaints.tell(f"{kind} {scope}/{name}", error)
            return None
        ends = [cut.positions for cut in cuts]
        return Named(cast("NameKind", kind), name, stored.stream, ends[0], ends[1] if len(ends) > 1 else None)


def protected(cuts: Cuts, named: Named) -> Cut | None:
    """From where on the name keeps the stream's data; None if it names none that is left."""
    head, end = cuts.head, named.end
    if not all(cuts.is_of_stream(cut) or cuts.is_forgotten(cut) for cut in (named.start, end) if cut is not None):
        return None
    start = None if cuts.is_forgotten(named.start) else cuts.settled(named.start)
    if start is not None and cuts.is_at_or_after(start, head):
        return named.start  # as it was given, so that the segments it names stay
    if end is None or (cuts.is_gone(end) if cuts.is_forgotten(end) else cuts.is_at_or_after(head, cuts.settled(end))):
        return None
    return head if start is None else cuts.latest(start, head)
