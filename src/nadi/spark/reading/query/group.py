"""A query's place in a reader group: what it has committed holds retention back, and the group's lag is the query's.

The group has no readers. Each commit of a batch moves its position and releases what lies before. Its state's
generation rises with each move, so a query that finds another one than its own last knows that another query has it.
"""

from __future__ import annotations

import logging

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.readergroup.group import pieces_of, shared_state_of
from nadi.client.readergroup.retention import release
from nadi.client.readergroup.state import GroupState, cuts_of, segments_of
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
from nadi.model.readergroup import NamedRange, StreamDataRetention
from nadi.model.streamcut import StreamCut
from nadi.spark.reading.query.offsets import Offsets

_logger = logging.getLogger(__name__)
_BY_HAND = StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT


class QueryGroup:
    """The reader group of one query."""

    def __init__(self, manager: StreamManager, scope: str, name: str) -> None:
        self._manager, self._scope, self._name = manager, scope, name
        self._generation: int | None = None  # None: the group isn't this query's yet
        self._at: dict[str, StreamCut] = {}

    async def position(self) -> dict[str, StreamCut]:
        """Where the group stands, by stream; nothing if there is no such group."""
        try:
            group = await self._manager.reader_group_manager(self._scope).get_reader_group(self._name)
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
        groups = self._manager.reader_group_manager(self._scope)
        cuts = [cut for cut, _ in (await self._there(start)).values()]
        if cuts:
            names = [cut.stream for cut in cuts]
            await groups.create_reader_group(self._name, names, starts=cuts, retention=_BY_HAND)
            await self._move(start)

    async def commit(self, end: Offsets) -> None:
        """Release what lies before an offset; ConflictError if another query has taken the group."""
        if {name: one.cut for name, one in end.streams.items()} != self._at or self._generation is None:
            await self.take(end)
            if self._generation is not None:
                await self._move(end)

    # --- inside -----------------------------------------------------------------------------

    async def _move(self, to: Offsets) -> None:
        stores = stores_of(self._manager)
        group = await self._manager.reader_group_manager(self._scope).get_reader_group(self._name)
        there = await self._there(to)
        segments = segments_of([piece for _, pieces in there.values() for piece in pieces])
        expected = self._generation

        def moved(state: GroupState) -> GroupState:
            self._check(state, set(there))
            found = state.apply(Reset(segments))
            if expected is not None and state.generation != expected:
                if state.generation == expected + 1 and state.positions() == found.positions():
                    return state  # it was this query, whose answer was lost
                raise ConflictError(
                    f"another query has taken reader group {self._scope}/{self._name}: give each query a 'groupId' of "
                    "its own, and start this one again if the other was a mistake"
                )
            return found

        state = await shared_state_of(group).change(moved)
        self._generation, self._at = state.generation, {name: one.cut for name, one in to.streams.items()}
        for cut, _ in there.values():
            try:
                await release(stores, self._scope, self._name, state.group_id, [cut])
            except SubscriberNotFoundError:
                raise self._remade(cut.stream) from None
            except (InvalidStreamCutError, StreamNotFoundError) as error:  # more was released: that stays so
                _logger.info("a query's group %s/%s releases nothing: %s", self._scope, self._name, error)

    async def _there(self, at: Offsets) -> dict[str, tuple[StreamCut, list[tuple[NamedRange, int]]]]:
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
