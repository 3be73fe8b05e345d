"""What a query's latest batch reads, noted by one of its tasks: then a query without its checkpoint knows how far the
output is.

The planner knows a batch's offsets, but neither the query's id nor the batch's number; tasks know both. All tasks end
before the sink commits: so of each batch that is in the output there is a note, or one of a later batch, which begins
where that one ended. A new query closes the sink's record of the query before it, which says what its last batch was,
and keeps it from writing another.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nadi.client.aio import StreamManager, Table
from nadi.client.tables.change import change_value
from nadi.client.tables.table import value_or_none
from nadi.errors import ConflictError, InvalidArgumentError
from nadi.model.streamcut import StreamCut
from nadi.spark.intents import SinkRecord
from nadi.spark.options.read import ReadOptions
from nadi.spark.options.write import WriteOptions
from nadi.spark.reading.query.offsets import Offsets

TABLE = "spark-sources"


class Note(msgspec.Struct, frozen=True):
    """start, end: the batch's offsets, as Spark keeps them. output: `scope/stream`."""

    query: str
    batch: int
    output: str
    start: dict[str, Any]
    end: dict[str, Any]


class BatchNotes:
    """The note of the query that has the group; with the option `output`."""

    def __init__(self, manager: StreamManager, options: ReadOptions) -> None:
        assert options.output is not None
        assert options.group_id is not None, "'output' needs it"
        self._manager, self._options = manager, options
        self._output, self._group = options.output, options.group_id
        self._table: Table = manager.table(options.scope, TABLE)

    async def write(self, query: str, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Note the batch that this task is of; ConflictError if another query has taken this one's place."""
        mine = Note(query, batch, "/".join(self._output), start, end)

        async def noted(value: bytes | None) -> tuple[bytes | None, None]:
            if value is None:
                await self._table.create()
            else:
                found = msgspec.json.decode(value, type=Note)
                if found == mine or (found.query == query and found.batch > batch):
                    return None, None
                if found.query != query:
                    await self._check_open(query)
            return msgspec.json.encode(mine), None

        await change_value(self._table, self._group.encode(), f"the note of group {self._group}", noted)

    async def last(self) -> dict[str, StreamCut]:
        """Where the output of the query before this one ends, by stream, once no batch of it can come any more; nothing
        if it noted none."""
        held = await value_or_none(self._table, self._group.encode())
        if held is None:
            return {}
        note = msgspec.json.decode(held.value, type=Note)
        if note.output != "/".join(self._output):
            raise InvalidArgumentError(
                f"the option 'output' is {'/'.join(self._output)}, and the query that had the group "
                f"{self._options.scope}/{self._group} wrote {note.output}: name that, or another 'groupId'"
            )
        is_written = await self._record(note.query).close() >= note.batch
        offsets = Offsets.from_json(note.end if is_written else note.start)
        return {name: one.cut for name, one in offsets.streams.items()}

    # --- inside -----------------------------------------------------------------------------

    def _record(self, query: str) -> SinkRecord:
        scope, stream = self._output
        return SinkRecord(
            self._manager, WriteOptions(controller=self._options.controller, scope=scope, stream=stream), query
        )

    async def _check_open(self, query: str) -> None:
        intent = await self._record(query).last()
        if intent is not None and intent.is_closed:
            raise ConflictError(
                f"another query has taken the place of query {query} in group {self._options.scope}/{self._group}, for "
                "which its checkpoint was taken for lost (startAt, output). Don't start it again"
            )
