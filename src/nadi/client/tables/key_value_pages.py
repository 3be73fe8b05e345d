"""A range of a key-value table in pages: the partitions are read side by side and merged in order of keys.

Each partition gives its keys in order. All that have none at hand are asked at once; what lies at or below
the least of the last keys they gave can't be preceded by anything still to come, so it is given out.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nadi.client.segments.stores import SegmentStores
from nadi.errors import InvalidArgumentError
from nadi.limits import TABLE_PAGE_MAX_ENTRIES
from nadi.wire import commands as wire
from nadi.wire.fields import TableEntry


class TableSpan(NamedTuple):
    """Keys of full length; both belong to the range."""

    low: bytes
    high: bytes


Page = list[tuple[int, TableEntry]]  # with the id of the segment where the entry lies


async def merged_pages(
    stores: SegmentStores,
    segments: Mapping[int, str],
    span: TableSpan,
    page_size: int,
    timeout_s: float | None,
    *,
    keys_only: bool,
) -> AsyncGenerator[Page, None]:
    """The range's entries in lists of `page_size`, the last shorter; values are empty if `keys_only`."""
    if not 1 <= page_size <= TABLE_PAGE_MAX_ENTRIES:
        raise InvalidArgumentError(f"a page has 1 to {TABLE_PAGE_MAX_ENTRIES:,} entries, not {page_size}")
    if span.low > span.high:
        return
    inputs = [_Partition(stores, i, name, *span, page_size, timeout_s, keys_only) for i, name in segments.items()]
    ready: Page = []
    while True:
        await asyncio.gather(*(source.fill() for source in inputs if not source.at_hand and not source.is_read))
        inputs = [source for source in inputs if source.at_hand]
        if not inputs:
            break
        bound = min((source.at_hand[-1].key for source in inputs if not source.is_read), default=span.high)
        fresh = [(source.segment_id, entry) for source in inputs for entry in source.take(bound)]
        ready += sorted(fresh, key=lambda found: found[1].key)
        while len(ready) >= page_size:
            yield ready[:page_size]
            ready = ready[page_size:]
    if ready:
        yield ready


@dataclass(slots=True)
class _Partition:
    """One partition's keys from `low` on, a page of them at hand."""

    stores: SegmentStores
    segment_id: int
    name: str
    low: bytes
    high: bytes
    page_size: int
    timeout_s: float | None
    keys_only: bool
    at_hand: list[TableEntry] = field(default_factory=list)
    is_read: bool = False  # to the range's end

    async def fill(self) -> None:
        name, count, span = self.name, self.page_size, (b"", self.low, self.high)
        if self.keys_only:
            asked = wire.ReadTableKeys(0, name, "", count, span)
            keys = (await self.stores.ask(asked, wire.TableKeysRead, self.timeout_s)).keys
            self.at_hand = [TableEntry(key, version, b"") for key, version in keys]
        else:
            wanted = wire.ReadTableEntries(0, name, "", count, span)
            self.at_hand = list((await self.stores.ask(wanted, wire.TableEntriesRead, self.timeout_s)).entries)
        following = _next_key(self.at_hand[-1].key) if self.at_hand else None
        if following is None or following > self.high:
            self.is_read = True
        else:
            self.low = following

    def take(self, bound: bytes) -> list[TableEntry]:
        """What is at hand up to the key `bound`."""
        count = bisect_right(self.at_hand, bound, key=lambda entry: entry.key)
        taken, self.at_hand = self.at_hand[:count], self.at_hand[count:]
        return taken


def _next_key(key: bytes) -> bytes | None:
    """The least key of the same length after `key`, if there is one."""
    number = int.from_bytes(key, "big") + 1
    return number.to_bytes(len(key), "big") if number < 1 << (8 * len(key)) else None
