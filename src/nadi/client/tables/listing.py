"""All entries of a table whose keys begin alike, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.table import Table
from nadi.errors import ScopeNotFoundError, SegmentNotFoundError
from nadi.limits import TABLE_PAGE_MAX_ENTRIES
from nadi.wire import commands as wire
from nadi.wire.fields import TableEntry


async def entries_of(stores: SegmentStores, scope: str, table: Table, prefix: bytes) -> AsyncIterator[TableEntry]:
    """In order of keys, which come without the prefix; none of a table that was never made.

    ScopeNotFoundError: there is no such scope.
    """
    token = b""
    while True:
        asked = wire.ReadTableEntries(0, table.segment, "", TABLE_PAGE_MAX_ENTRIES, (token, prefix, prefix + b"\xff"))
        try:
            page = await stores.ask(asked, wire.TableEntriesRead)
        except SegmentNotFoundError:
            if not await stores.controller.scope_exists(scope):
                raise ScopeNotFoundError(scope) from None
            return
        if not page.entries:
            return
        for entry in page.entries:
            yield TableEntry(bytes(entry.key[len(prefix) :]), entry.version, bytes(entry.value))
        token = page.continuation_token


async def named_entries(
    stores: SegmentStores, scope: str, table: Table, prefix: str
) -> AsyncIterator[tuple[str, bytes]]:
    """As `entries_of`: names and values."""
    async for entry in entries_of(stores, scope, table, prefix.encode()):
        yield entry.key.decode(errors="replace"), entry.value
