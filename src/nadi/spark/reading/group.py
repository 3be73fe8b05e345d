"""What a query keeps beside its checkpoint: its place in a reader group, and a note of what its latest batch reads.

What a query has committed holds retention back, and the group's lag is the query's. The group has no readers. Each
commit of a batch moves its position and releases what lies before. Its state's generation rises with each move, so a
query that finds another one than its own last knows that another query has it.

With the note a query without its checkpoint knows how far the output is. The planner knows a batch's offsets, but
neither the query's id nor the batch's number; tasks know both. All tasks end before the sink commits: so of each batch
that is in the output there is a note, or one of a later batch, which begins where that one ended. The first task of a
new query closes the sink's record of the query before it, which can write nothing from then on, and makes sure that it
starts where that one ended. Not the planner: Spark asks it for a start again if a query's first batch has to be run
again.
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
    EpochGoneError,
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

_There = dict[str, tuple[StreamCut, list[tuple[NamedRange, int]]]]
_logger = logging.getLogger(__name__)
_BY_HAND = StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT


class QueryGroup:
    """The reader group of one query. delivery: at most once, it stands behind what was handed out, not what was
    committed, and never goes back."""

    def __init__(self, manager: StreamManager, scope: str, name: str, delivery: Guarantee = EXACTLY_ONCE) -> None:
        self._manager, self._scope, self._name = manager, scope, name
        self._is_at_most_once = delivery == AT_MOST_ONCE
        self._generation: int | None = None  # None: the group isn't this query's yet
        self._at: dict[str, StreamCut] = {}

    async def position(self) -> dict[str, StreamCut]:
        """Where the group stands, by stream; nothing if there is no such group."""
        try:
            group = await self._group()
        except ReaderGroupNotFoundError:
            return {}
        state = await shared_state_of(group).read()
        found = {cut.stream: cut for cut in cuts_of(state.positions()).values()}
        for cut in found.values():
            try:
                await pieces_of(stores_of(self._manager), cut)
            except (EpochGoneError, StreamNotFoundError):  # who plans the first batch says so
                continue
            except InvalidStreamCutError:
                raise self._remade(cut.stream) from None
        return found

    async def take(self, start: Offsets) -> None:
        """Make the group this query's, once, and put it where the query is."""
        if self._generation is not None:
            return
        cuts = [cut for cut, _ in (await self._there(start)).values()]
        if cuts:
            names = [cut.stream for cut in cuts]
            groups = self._manager.reader_group_manager(self._scope)
            await groups.create_reader_group(self._name, names, starts=cuts, retention=_BY_HAND)
            if self._is_at_most_once:
                state = await shared_state_of(await self._group()).read()
                self._check(state, set(names))
                self._generation = state.generation
                self._at = {cut.stream: cut for cut in cuts_of(state.positions()).values()}
            else:
                await self._move(start)

    async def hand_out(self, start: Offsets, end: Offsets) -> tuple[Offsets, int]:
        """Stand behind a batch from now on. Return where what was not handed out before begins, and a number that rises
        with each batch."""
        begin, ahead = dict[str, Offset](), dict[str, Offset]()
        for name, to in end.streams.items():
            one, at = start.streams.get(name, to), self._at.get(name)
            begin[name], ahead[name] = one, to
            if at is None or at == one.cut:
                continue
            cuts = self._manager.cuts(self._scope, name)
            if (await cuts.compare(to.cut, at)).is_at_or_before:
                begin[name], ahead[name] = to, Offset(at)
            else:
                begin[name] = Offset(await cuts.earliest(to.cut, await cuts.latest(one.cut, at)))
                ahead[name] = Offset(await cuts.latest(to.cut, at))
        if any(one.cut != self._at.get(name) for name, one in ahead.items()):
            await self._move(Offsets(ahead))
        assert self._generation is not None
        return Offsets(begin, start.left), self._generation

    async def commit(self, end: Offsets) -> None:
        """Release what lies before an offset; ConflictError if another query has taken the group."""
        if self._is_at_most_once:
            state = await shared_state_of(await self._group()).read()
            await self._release(state.group_id, await self._there(end))
        elif {name: one.cut for name, one in end.streams.items()} != self._at or self._generation is None:
            await self.take(end)
            if self._generation is not None:
                await self._move(end)

    # --- inside -----------------------------------------------------------------------------

    async def _group(self) -> ReaderGroup:
        return await self._manager.reader_group_manager(self._scope).get_reader_group(self._name)

    async def _move(self, to: Offsets) -> None:
        group, there = await self._group(), await self._there(to)
        segments = segments_of([piece for _, pieces in there.values() for piece in pieces])
        expected = self._generation

        def moved(state: GroupState) -> GroupState:
            self._check(state, set(there))
            found = state.apply(Reset(segments))
            if expected is not None and state.generation != expected:
                is_same = state.generation == expected + 1 and state.positions() == found.positions()
                if is_same and not self._is_at_most_once:  # else it may be another run, which hands the same out
                    return state  # it was this query, whose answer was lost
                raise ConflictError(
                    f"another query has taken reader group {self._scope}/{self._name}: give each query a 'groupId' of "
                    "its own, and start this one again if the other was a mistake"
                )
            return found

        state = await shared_state_of(group).change(moved)
        self._generation, self._at = state.generation, {name: one.cut for name, one in to.streams.items()}
        if not self._is_at_most_once:  # else tasks have yet to read what lies before
            await self._release(state.group_id, there)

    async def _release(self, group_id: str, there: _There) -> None:
        for cut, _ in there.values():
            try:
                await release(stores_of(self._manager), self._scope, self._name, group_id, [cut])
            except SubscriberNotFoundError:
                raise self._remade(cut.stream) from None
            except (InvalidStreamCutError, StreamNotFoundError) as error:  # more was released: that stays so
                _logger.info("a query's group %s/%s releases nothing: %s", self._scope, self._name, error)

    async def _there(self, at: Offsets) -> _There:
        """The cuts and their segments; the head's where a cut is forgotten. Of streams that are gone, or other ones by
        now, there is nothing: who plans the next batch says so."""
        stores, found = stores_of(self._manager), {}
        for name, one in at.streams.items():
            cut = one.cut
            try:
                try:
                    pieces = await pieces_of(stores, cut)
                except EpochGoneError:
                    cut = await stores.controller.head(cut.scope, cut.stream)
                    pieces = await pieces_of(stores, cut)
            except (InvalidStreamCutError, StreamNotFoundError):
                continue
            found[name] = cut, pieces
        return found

    def _remade(self, stream: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the option 'groupId' names reader group {self._scope}/{self._name}, which is of a stream {stream} that "
            "was deleted and created again since: delete the group (nadi group delete), or name another"
        )

    def _check(self, state: GroupState, streams: set[str]) -> None:
        what = f"reader group {self._scope}/{self._name}"
        if state.retention is not _BY_HAND or state.readers:
            raise InvalidArgumentError(
                f"the option 'groupId' names {what}, which has readers, or was made for them: give the query its own"
            )
        of_group = {key.partition("/")[2] for key in state.streams}
        if not streams <= of_group:
            raise InvalidArgumentError(
                f"the option 'groupId' names {what}, which is of {', '.join(sorted(of_group))}, and the query reads "
                f"{', '.join(sorted(streams))}: give the query a group of its own, or delete this one"
            )


class BatchNote(msgspec.Struct, frozen=True):
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
        self._output, self._group = "/".join(options.output), f"{options.scope}/{options.group_id}"
        self._note = ledger(manager, options.scope, "the note of group", "source/", BatchNote).record(options.group_id)

    async def write(self, query: str, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Note the batch that this task is of; ConflictError if another query has taken this one's place, or the one
        before it wrote something since this one was planned."""
        mine = BatchNote(query, batch, self._output, start, end)

        async def noted(stored: BatchNote | None) -> BatchNote | None:
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
        if note.output != self._output:
            raise InvalidArgumentError(
                f"the option 'output' is {self._output}, and the query that had the group {self._group} wrote "
                f"{note.output}: name that, or another 'groupId'"
            )
        return _end(note, await self._record(note.query).settle())

    async def first(self, end: Offsets) -> Offsets | None:
        """Where the first batch of the query that noted last began, if that ended there; None otherwise."""
        note = await self._note.find()
        if note is None or note.batch or note.output != self._output or Offsets.from_json(note.end) != end:
            return None
        return Offsets.from_json(note.start)

    async def forget(self) -> None:
        """Remove the note as it was read, unless there is another by now: its group was deleted."""
        await self._note.delete_read()

    async def is_there(self) -> bool:
        return await self._note.find() is not None

    # --- inside -----------------------------------------------------------------------------

    def _record(self, query: str) -> SinkRecord:
        assert self._options.output is not None
        scope, stream = self._options.output
        options = WriteOptions(controller=self._options.controller, scope=scope, stream=stream)
        return SinkRecord(self._manager, options, query)

    async def _take_place(self, found: BatchNote, mine: BatchNote) -> None:
        """Have the query that noted last write nothing any more."""
        intent = await self._record(mine.query).last()
        if intent is not None and intent.is_closed:
            raise ConflictError(
                f"another query has taken the place of query {mine.query} in group {self._group}, for which its "
                "checkpoint was taken for lost (startAt, output). Don't start it again"
            )
        ended = _end(found, await self._record(found.query).close())
        began = Offsets.from_json(mine.start).streams.items()
        if self._options.starts_at_group and any(ended[name] != one.cut for name, one in began if name in ended):
            raise ConflictError(
                f"query {found.query} wrote to {mine.output} while this one, {mine.query}, was being started in its "
                "place. It can't any more: start this one again, with a new checkpoint"
            )


def _end(note: BatchNote, last: int) -> dict[str, StreamCut]:
    offsets = Offsets.from_json(note.end if last >= note.batch else note.start)
    return {name: one.cut for name, one in offsets.streams.items()}
