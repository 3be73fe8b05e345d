"""A small client of one hash table: keys with versions, conditional updates.

Versions are the server's; `ABSENT` as the expected version means that the key must not be there. An
update whose reply was lost is not repeated, for it may have been done: read the key, then decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from nadi.client.control.arguments import checked
from nadi.client.segments.stores import SegmentStores
from nadi.errors import AlreadyExistsError, InvalidArgumentError
from nadi.naming import TABLE_SUFFIX, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

ABSENT = NOT_EXISTS
ANY_VERSION = NO_VERSION


@dataclass(frozen=True, slots=True)
class TableValue:
    """A value and the version under which it was read."""

    value: bytes
    version: int


def table_bytes(given: object, what: str) -> bytes:
    """A key or a value as bytes; InvalidArgumentError if it is no bytes, which would end the whole connection."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise InvalidArgumentError(f"a table's {what} is bytes, not {type(given).__name__}: encode it first")


@checked()
class Table:
    """The table `name` of a scope."""

    def __init__(self, stores: SegmentStores, scope: str, name: str) -> None:
        self._stores = stores
        self.segment = segment_name(scope, name + TABLE_SUFFIX, 0)

    async def create(self) -> bool:
        """False if it existed."""
        try:
            await self._stores.call(self.segment, wire.CreateTableSegment, segment=self.segment)
        except AlreadyExistsError:
            return False
        return True

    async def delete(self) -> None:
        """Delete it with all that it holds; SegmentNotFoundError if there is none."""
        await self._stores.call(self.segment, wire.DeleteTableSegment, segment=self.segment, must_be_empty=False)

    async def get(self, key: bytes) -> TableValue | None:
        """The value and its version, or None."""
        reply = await self._stores.call(
            self.segment, wire.ReadTable, segment=self.segment, keys=(TableKey(table_bytes(key, "key")),)
        )
        assert isinstance(reply, wire.TableRead)
        entry = reply.entries[0]
        return None if entry.version == NOT_EXISTS else TableValue(entry.value, entry.version)

    async def put(self, key: bytes, value: bytes, version: int = ANY_VERSION) -> int:
        """Store the value and return its version; ConditionFailedError if the key had another one."""
        reply = await self._stores.call(
            self.segment,
            wire.UpdateTableEntries,
            repeat=version == ANY_VERSION,
            segment=self.segment,
            entries=(TableEntry(table_bytes(key, "key"), version, table_bytes(value, "value")),),
        )
        assert isinstance(reply, wire.TableEntriesUpdated)
        return reply.versions[0]

    async def remove(self, key: bytes, version: int = ANY_VERSION) -> None:
        """Remove the key; ConditionFailedError if it had another version."""
        await self._stores.call(
            self.segment,
            wire.RemoveTableKeys,
            repeat=version == ANY_VERSION,
            segment=self.segment,
            keys=(TableKey(table_bytes(key, "key"), version),),
        )
