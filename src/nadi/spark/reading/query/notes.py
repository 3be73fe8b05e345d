"""What a query's latest batch reads, noted by one of its tasks: then a query without its checkpoint knows how far the
output is.

The planner knows a batch's offsets, but neither the query's id nor the batch's number; tasks know both. All tasks end
before the sink commits: so of each batch that is in the output there is a note, or one of a later batch, which begins
where that one ended. The first task of a new query closes the sink's record of the query before it, which can write
nothing from then on, and makes sure that it starts where that one ended. Not the planner: Spark asks it for a start
again if a query's first batch has to be run again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nadi.client.aio import StreamManager
from nadi.errors import ConflictError, InvalidArgumentError
from nadi.model.streamcut import StreamCut
from nadi.spark.intents import SinkRecord
from nadi.spark.ledger import ledger
from nadi.spark.options.read import ReadOptions
from nadi.spark.options.write import WriteOptions
from nadi.spark.reading.query.offsets import Offsets


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
        self._note = ledger(manager, options.scope, "the note of group", "source/", Note).record(self._group)

    async def write(self, query: str, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Note the batch that this task is of; ConflictError if another query has taken this one's place, or the one
        before it wrote something since this one was planned."""
        mine = Note(query, batch, self._output_text, start, end)

        async def noted(stored: Note | None) -> Note | None:
            if stored is not None:
                if stored == mine or (stored.query == query and stored.batch > batch):
                    return None
                if stored.query != query and stored.output == mine.output:
                    await self._take_place(stored, mine)
            return mine

        await self._note.put(noted)

    async def last(self) -> dict[str, StreamCut]:
        """Where the output of the query that noted last ends, by stream; nothing if none did."""
        note = await self._note.find()
        if note is None:
            return {}
        if note.output != self._output_text:
            raise InvalidArgumentError(
                f"the option 'output' is {self._output_text}, and the query that had the group "
                f"{self._options.scope}/{self._group} wrote {note.output}: name that, or another 'groupId'"
            )
        return _end(note, await self._record(note.query).settle())

    async def first(self, end: Offsets) -> Offsets | None:
        """Where the first batch of the query that noted last began, if that ended there; None otherwise."""
        note = await self._note.find()
        if note is None or note.batch or note.output != self._output_text or Offsets.from_json(note.end) != end:
            return None
        return Offsets.from_json(note.start)

    async def forget(self) -> None:
        """Remove the note as it was read, unless there is another by now: its group was deleted."""
        await self._note.delete_read()

    async def is_there(self) -> bool:
        return await self._note.find() is not None

    # --- inside -----------------------------------------------------------------------------

    @property
    def _output_text(self) -> str:
        return "/".join(self._output)

    def _record(self, query: str) -> SinkRecord:
        scope, stream = self._output
        return SinkRecord(
            self._manager, WriteOptions(controller=self._options.controller, scope=scope, stream=stream), query
        )

    async def _take_place(self, found: Note, mine: Note) -> None:
        """Have the query that noted last write nothing any more."""
        intent = await self._record(mine.query).last()
        if intent is not None and intent.is_closed:
            raise ConflictError(
                f"another query has taken the place of query {mine.query} in group "
                f"{self._options.scope}/{self._group}, for which its checkpoint was taken for lost (startAt, output). "
                "Don't start it again"
            )
        ended = _end(found, await self._record(found.query).close())
        began = _cuts(mine.start)
        if self._options.starts_at_group and any(ended[name] != cut for name, cut in began.items() if name in ended):
            raise ConflictError(
                f"query {found.query} wrote to {mine.output} while this one, {mine.query}, was being started in its "
                "place. It can't any more: start this one again, with a new checkpoint"
            )


def _end(note: Note, last: int) -> dict[str, StreamCut]:
    """Where the output ends if that was the last batch of the note's query."""
    return _cuts(note.end if last >= note.batch else note.start)


def _cuts(offsets: dict[str, Any]) -> dict[str, StreamCut]:
    return {name: one.cut for name, one in Offsets.from_json(offsets).streams.items()}
