"""The state that a query stores besides its checkpoint: its position in a reader group, and a note of its latest batch.

The group makes retention wait for the query's commits, and reports the query's lag. It is without readers. Each commit
of a batch moves its position and releases everything before it. The generation of its state increases with each move,
so a query that finds a generation other than its own last one knows that another query uses the group.

From the note, a query without its checkpoint learns how complete the output is. The planner knows a batch's offsets,
but neither the query's id nor the batch's number; tasks know both. All tasks end before the sink commits: so each batch
in the output has a note, or a later batch has one, which starts where that one ended. The first task of a new query
closes the sink's record of the previous query, which can't write afterwards, and verifies that its own batch starts
where that query ended. The planner couldn't: Spark requests another start if a query's first batch has to be repeated.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.readergroup.group import ReaderGroup, pieces_of, shared_state_of
from nadi.client.readergroup.state import GroupState, cuts_of, segments_of
from nadi.client.readergroup.stored_state import release
from nadi.client.readergroup.updates import Reset
from nadi.errors import (
    ConflictError,
    EpochExpiredError,
    InvalidArgumentError,
    InvalidStreamCutError,
    ReaderGroupNotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
)
from nadi.model.delivery import AT_MOST_ONCE, EXACTLY_ONCE, Guarantee
from nadi.model.readergroup import NamedRange, StreamDataRetention
from nadi.model.streamcut import StreamCut
from nadi.spark.intents import SinkRecord
from nadi.spark.ledger import ledger
from nadi.spark.options.parsed import ReadOptions, WriteOptions
from nadi.spark.reading.offsets import Offset, Offsets

_Located = dict[str, tuple[StreamCut, list[tuple[NamedRange, int]]]]
_logger = logging.getLogger(__name__)
_MANUAL = StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT


class QueryGroup:
    """The reader group of one query. delivery: with at most once, its position follows batches handed out instead of
    commits, and never moves back."""

    def __init__(self, manager: StreamManager, scope: str, name: str, delivery: Guarantee = EXACTLY_ONCE) -> None:
        self._manager, self._scope, self._name = manager, scope, name
        self._is_at_most_once = delivery == AT_MOST_ONCE
        self._generation: int | None = None  # None: the query hasn't taken the group yet
        self._position: dict[str, StreamCut] = {}

    async def position(self) -> dict[str, StreamCut]:
        """Return the group's position by stream; empty if the group doesn't exist."""
        try:
            group = await self._group()
        except ReaderGroupNotFoundError:
            return {}
        state = await shared_state_of(group).read()
        cuts = {cut.stream: cut for cut in cuts_of(state.positions()).values()}
        for cut in cuts.values():
            try:
                await pieces_of(stores_of(self._manager), cut)
            except (EpochExpiredError, StreamNotFoundError):  # planning the first batch reports it
                continue
            except InvalidStreamCutError:
                raise self._recreated(cut.stream) from None
        return cuts

    async def take(self, start: Offsets) -> None:
        """Take the group over, once, and move it to the query's position."""
        if self._generation is not None:
            return
        cuts = [cut for cut, _ in (await self._locate(start)).values()]
        if cuts:
            names = [cut.stream for cut in cuts]
            groups = self._manager.reader_group_manager(self._scope)
            await groups.create_reader_group(self._name, names, starts=cuts, retention=_MANUAL)
            if self._is_at_most_once:
                state = await shared_state_of(await self._group()).read()
                self._check(state, set(names))
                self._generation = state.generation
                self._position = {cut.stream: cut for cut in cuts_of(state.positions()).values()}
            else:
                await self._move(start)

    async def hand_out(self, start: Offsets, end: Offsets) -> tuple[Offsets, int]:
        """Move past a batch. Return the start of the part that was never handed out, and a number that increases with
        each batch."""
        begin, behind_batch = dict[str, Offset](), dict[str, Offset]()
        for name, batch_end in end.streams.items():
            offset, current = start.streams.get(name, batch_end), self._position.get(name)
            begin[name], behind_batch[name] = offset, batch_end
            if current is None or current == offset.cut:
                continue
            cuts = self._manager.cuts(self._scope, name)
            if (await cuts.compare(batch_end.cut, current)).is_at_or_before:
                begin[name], behind_batch[name] = batch_end, Offset(current)
            else:
                begin[name] = Offset(await cuts.earliest(batch_end.cut, await cuts.latest(offset.cut, current)))
                behind_batch[name] = Offset(await cuts.latest(batch_end.cut, current))
        if any(offset.cut != self._position.get(name) for name, offset in behind_batch.items()):
            await self._move(Offsets(behind_batch))
        assert self._generation is not None
        return Offsets(begin, start.left), self._generation

    async def commit(self, end: Offsets) -> None:
        """Release everything before an offset; ConflictError if another query has taken the group."""
        if self._is_at_most_once:
            state = await shared_state_of(await self._group()).read()
            await self._release(state.group_id, await self._locate(end))
        elif {name: offset.cut for name, offset in end.streams.items()} != self._position or self._generation is None:
            await self.take(end)
            if self._generation is not None:
                await self._move(end)

    # --- inside -----------------------------------------------------------------------------

    async def _group(self) -> ReaderGroup:
        return await self._manager.reader_group_manager(self._scope).get_reader_group(self._name)

    async def _move(self, target: Offsets) -> None:
        group, located = await self._group(), await self._locate(target)
        segments = segments_of([piece for _, pieces in located.values() for piece in pieces])
        expected = self._generation

        def moved(state: GroupState) -> GroupState:
            self._check(state, set(located))
            reset = state.apply(Reset(segments))
            if expected is not None and state.generation != expected:
                is_same = state.generation == expected + 1 and state.positions() == reset.positions()
                if is_same and not self._is_at_most_once:  # otherwise another run may hand out the same batch
                    return state  # this query's own change, whose response was lost
                raise ConflictError(
                    f"another query has taken reader group {self._scope}/{self._name}: give each query its own "
                    "'groupId', and start this one again if the other was started by mistake"
                )
            return reset

        state = await shared_state_of(group).change(moved)
        self._generation, self._position = (
            state.generation,
            {name: offset.cut for name, offset in target.streams.items()},
        )
        if not self._is_at_most_once:  # otherwise tasks have yet to read the events before it
            await self._release(state.group_id, located)

    async def _release(self, group_id: str, located: _Located) -> None:
        for cut, _ in located.values():
            try:
                await release(stores_of(self._manager), self._scope, self._name, group_id, [cut])
            except SubscriberNotFoundError:
                raise self._recreated(cut.stream) from None
            except (InvalidStreamCutError, StreamNotFoundError) as error:  # more was already released
                _logger.info("a query's group %s/%s releases nothing: %s", self._scope, self._name, error)

    async def _locate(self, offsets: Offsets) -> _Located:
        """Return the cuts and their segments; the head's if a cut is forgotten. Omits streams that were deleted or
        recreated, which planning the next batch reports."""
        stores, located = stores_of(self._manager), {}
        for name, offset in offsets.streams.items():
            cut = offset.cut
            try:
                try:
                    pieces = await pieces_of(stores, cut)
                except EpochExpiredError:
                    cut = await stores.controller.head(cut.scope, cut.stream)
                    pieces = await pieces_of(stores, cut)
            except (InvalidStreamCutError, StreamNotFoundError):
                continue
            located[name] = cut, pieces
        return located

    def _recreated(self, stream: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the option 'groupId' is reader group {self._scope}/{self._name}, whose stream {stream} was deleted and "
            "created again: delete the group (nadi group delete), or use another"
        )

    def _check(self, state: GroupState, streams: set[str]) -> None:
        subject = f"reader group {self._scope}/{self._name}"
        if state.retention is not _MANUAL or state.readers:
            raise InvalidArgumentError(
                f"the option 'groupId' is {subject}, which wasn't created by a query or has readers: use another group"
            )
        group_streams = {key.partition("/")[2] for key in state.streams}
        if not streams <= group_streams:
            raise InvalidArgumentError(
                f"the option 'groupId' is {subject}, which reads {', '.join(sorted(group_streams))}, but the query "
                f"reads {', '.join(sorted(streams))}: give the query its own group, or delete this one"
            )


class BatchNote(msgspec.Struct, frozen=True):
    """The offsets of a batch, in Spark's JSON form. output: `scope/stream`."""

    query: str
    batch: int
    output: str
    start: dict[str, Any]
    end: dict[str, Any]


class BatchNotes:
    """The note of the query that has the group, with the option `output`."""

    def __init__(self, manager: StreamManager, options: ReadOptions) -> None:
        assert options.output is not None
        assert options.group_id is not None, "'output' needs it"
        self._manager, self._options = manager, options
        self._output, self._group = "/".join(options.output), f"{options.scope}/{options.group_id}"
        self._note = ledger(manager, options.scope, "the note of group", "source/", BatchNote).record(options.group_id)

    async def write(self, query: str, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Note the current task's batch; ConflictError if another query has replaced this one, or the previous query
        wrote something after this one was planned."""
        note = BatchNote(query, batch, self._output, start, end)

        async def noted(stored: BatchNote | None) -> BatchNote | None:
            if stored is not None:
                if stored == note or (stored.query == query and stored.batch > batch):
                    return None
                if stored.query != query and stored.output == note.output:
                    await self._replace_query(stored, note)
            return note

        await self._note.put(noted)

    async def last(self) -> dict[str, StreamCut]:
        """Return where the output of the last noted query ends, by stream; empty without a note."""
        note = await self._note.find()
        if note is None:
            return {}
        if note.output != self._output:
            raise InvalidArgumentError(
                f"the option 'output' is {self._output}, but the query that used the group {self._group} wrote to "
                f"{note.output}: set that, or another 'groupId'"
            )
        return _end(note, await self._record(note.query).settle())

    async def first(self, end: Offsets) -> Offsets | None:
        """Return the start of the last noted query's first batch, if it ended at `end`."""
        note = await self._note.find()
        if note is None or note.batch or note.output != self._output or Offsets.from_json(note.end) != end:
            return None
        return Offsets.from_json(note.start)

    async def discard(self) -> None:
        """Delete the note that was read, unless it has changed: its group was deleted."""
        await self._note.delete_read()

    async def is_there(self) -> bool:
        return await self._note.find() is not None

    # --- inside -----------------------------------------------------------------------------

    def _record(self, query: str) -> SinkRecord:
        assert self._options.output is not None
        scope, stream = self._options.output
        options = WriteOptions(controller=self._options.controller, scope=scope, stream=stream)
        return SinkRecord(self._manager, options, query)

    async def _replace_query(self, previous: BatchNote, note: BatchNote) -> None:
        """Close the record of the previously noted query."""
        intent = await self._record(note.query).last()
        if intent is not None and intent.is_closed:
            raise ConflictError(
                f"another query has replaced query {note.query} in group {self._group}, as its checkpoint was "
                "considered lost (startAt, output). Don't start it again"
            )
        ended = _end(previous, await self._record(previous.query).close())
        began = Offsets.from_json(note.start).streams.items()
        if self._options.starts_at_group and any(ended[name] != offset.cut for name, offset in began if name in ended):
            raise ConflictError(
                f"query {previous.query} wrote to {note.output} while this one, {note.query}, was being started to "
                "replace it. It is stopped now: start this one again, with a new checkpoint"
            )


def _end(note: BatchNote, last: int) -> dict[str, StreamCut]:
    offsets = Offsets.from_json(note.end if last >= note.batch else note.start)
    return {name: offset.cut for name, offset in offsets.streams.items()}
