"""A query's place in a reader group: what it has committed holds retention back, and the group's lag is the query's.

The group has no readers. Each commit of a batch moves its position and releases what lies before. Its state's
generation rises with each move, so a query that finds another one than its own last knows that another query has it.
"""

from __future__ import annotations

import logging

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.readergroup.group import pieces_of, shared_state_of
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
from nadi.spark.reading.query.offsets import Offset, Offsets

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
            if self._is_at_most_once:
                state = await shared_state_of(await groups.get_reader_group(self._name)).read()
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
            group = await self._manager.reader_group_manager(self._scope).get_reader_group(self._name)
            await self._release((await shared_state_of(group).read()).group_id, await self._there(end))
        elif {name: one.cut for name, one in end.streams.items()} != self._at or self._generation is None:
            await self.take(end)
            if self._generation is not None:
                await self._move(end)

    # --- inside -----------------------------------------------------------------------------

    async def _move(self, to: Offsets) -> None:
        group = await self._manager.reader_group_manager(self._scope).get_reader_group(self._name)
        there = await self._there(to)
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
