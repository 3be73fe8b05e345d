"""How far the changes of a table are written: one record in the store, changed by whoever knows its newest version."""

from __future__ import annotations

import msgspec

from nadi.backoff import Tries
from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.table import ABSENT, Table, value_or_none
from nadi.errors import ConditionFailedError, ConflictError, UnavailableError
from nadi.model.place import PROGRESS_PREFIX, StoredProgress
from nadi.naming import STREAM_TABLES_TABLE


class Progress:
    """The record of the changes in one stream table."""

    def __init__(self, stores: SegmentStores, scope: str, to: str) -> None:
        self._table: Table = Table(stores, scope, STREAM_TABLES_TABLE)
        self._key, self._what = (PROGRESS_PREFIX + to).encode(), f"how far the changes in {scope}/{to} are written"
        self._version = ABSENT

    async def read(self) -> StoredProgress | None:
        """Return the record, None if there is none yet; what is put next is in its place."""
        held = await value_or_none(self._table, self._key)
        self._version = ABSENT if held is None else held.version
        return None if held is None else msgspec.json.decode(held.value, type=StoredProgress)

    async def put(self, record: StoredProgress) -> None:
        """ConflictError if somebody else has changed it since it was read; UnavailableError: it may be stored."""
        encoded = msgspec.json.encode(record)
        tries = Tries(self._what)
        while True:
            try:
                self._version = await self._table.put(self._key, encoded, self._version)
                return
            except ConditionFailedError:
                raise self._taken() from None
            except UnavailableError:  # it may have been stored
                await tries.lost()
            held = await value_or_none(self._table, self._key)
            version = ABSENT if held is None else held.version
            if held is not None and held.value == encoded:
                self._version = version
                return
            if version != self._version:
                raise self._taken()

    def _taken(self) -> ConflictError:
        return ConflictError(f"{self._what} was changed by another process, which writes them now: this one stops")
