"""Client of a hash table in one segment: keys with versions, and conditional updates.

The server assigns versions; `ABSENT` as the expected version means that the key must not exist. An update whose reply
was lost isn't repeated because it may have taken effect: read the key, then decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from nadi.client.control.arguments import checked
from nadi.client.segments.stores import SegmentStores
from nadi.errors import AlreadyExistsError, InvalidArgumentError, SegmentNotFoundError
from nadi.naming import TABLE_SUFFIX, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, WireTableEntry, WireTableKey

ABSENT = NOT_EXISTS
ANY_VERSION = NO_VERSION


@dataclass(frozen=True, slots=True)
class TableValue:
    """A value and the version under which it was read."""

    value: bytes
    version: int


def table_bytes(value: object, role: str) -> bytes:
    """Return a key or value as bytes; InvalidArgumentError for other types, which would break the connection."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidArgumentError(f"a table's {role} must be bytes, not {type(value).__name__}: encode it first")


@checked()
class Table:
    """The table `name` of a scope."""

    def __init__(self, stores: SegmentStores, scope: str, name: str) -> None:
        self._stores = stores
        self.segment = segment_name(scope, name + TABLE_SUFFIX, 0)

    async def create(self) -> bool:
        """Create the table; return False if it already exists."""
        try:
            await self._stores.ask(wire.CreateTableSegment(0, self.segment, ""), wire.SegmentCreated)
        except AlreadyExistsError:
            return False
        return True

    async def delete(self) -> None:
        """Delete the table and its contents; SegmentNotFoundError if it doesn't exist."""
        await self._stores.ask(wire.DeleteTableSegment(0, self.segment, False, ""), wire.SegmentDeleted)

    async def get(self, key: bytes) -> TableValue | None:
        """Return the value and its version, or None."""
        request = wire.ReadTable(0, self.segment, "", (WireTableKey(table_bytes(key, "key")),))
        entry = (await self._stores.ask(request, wire.TableRead)).entries[0]
        return None if entry.version == NOT_EXISTS else TableValue(entry.value, entry.version)

    async def put(self, key: bytes, value: bytes, version: int = ANY_VERSION) -> int:
        """Store the value and return its version; ConditionFailedError unless the key had the given version."""
        entry = WireTableEntry(table_bytes(key, "key"), version, table_bytes(value, "value"))
        update = wire.UpdateTableEntries(0, self.segment, "", (entry,))
        return (await self._stores.ask(update, wire.TableEntriesUpdated, repeat=version == ANY_VERSION)).versions[0]

    async def remove(self, key: bytes, version: int = ANY_VERSION) -> None:
        """Remove the key; ConditionFailedError unless it had the given version."""
        removal = wire.RemoveTableKeys(0, self.segment, "", (WireTableKey(table_bytes(key, "key"), version),))
        await self._stores.ask(removal, wire.TableKeysRemoved, repeat=version == ANY_VERSION)


# --- for other modules of the client ----------------------------------------------------------


async def value_or_none(table: Table, key: bytes) -> TableValue | None:
    """Call `Table.get`; return None if the table doesn't exist, too."""
    try:
        return await table.get(key)
    except SegmentNotFoundError:
        return None
