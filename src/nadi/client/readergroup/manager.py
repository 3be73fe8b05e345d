"""ReaderGroupManager: creates, opens and deletes reader groups.

Groups are registered at the controller like Pravega's, so they appear in lists and REST; the readers' shared state is
stored in a table (docs/decisions/0003). The ids of nadi's groups start with the four bytes `nadi`, because the state of
other clients' groups has another format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from uuid import UUID

from msgspec.structs import replace

from nadi.client.control.arguments import check_is_cut, checked
from nadi.client.readergroup.group import ReaderGroup, lag_of, pieces_of
from nadi.client.readergroup.reader import EventReader
from nadi.client.readergroup.state import cut_of, cuts_of, first_state
from nadi.client.readergroup.stored_state import StoredGroupState, release
from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts.cuts import StreamCuts
from nadi.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidStreamCutError,
    ReaderGroupNotFoundError,
    TruncatedError,
)
from nadi.limits import PREFIXED_NAME_MAX_CHARS
from nadi.model.readergroup import NADIS_ID, NamedRange, StreamDataRetention, Timing, is_nadis
from nadi.model.reports import GroupLagReport
from nadi.model.streamcut import StreamCut
from nadi.naming import READER_GROUP_PREFIX, check_name


@checked()
class ReaderGroupManager:
    """The reader groups of one scope; created by `StreamManager.reader_group_manager`."""

    def __init__(self, stores: SegmentStores, adopt: Callable[[EventReader], None], scope: str) -> None:
        """adopt: called with every reader created, to close it with its client."""
        self.scope = scope
        self._stores, self._adopt = stores, adopt

    async def create_reader_group(
        self,
        name: str,
        streams: Iterable[str] | str,
        *,
        starts: Iterable[StreamCut] = (),
        ends: Iterable[StreamCut] = (),
        refresh_ms: int = 500,
        dead_after_ms: int = 10_000,
        checkpoint_interval_ms: int = 0,
        retention: StreamDataRetention = StreamDataRetention.NONE,
    ) -> bool:
        """Create a group that reads `streams` (of this scope, or as `scope/stream`); return False if it already exists.

        Each stream is read from its cut in `starts`, or its head, to its cut in `ends`, or endlessly. Readers poll the
        group's state every `refresh_ms`; a reader silent for `dead_after_ms` is taken offline by the others. A
        checkpoint is made every `checkpoint_interval_ms`, unless that is 0. retention: whether the streams retain
        events that the group hasn't released, from now on.
        """
        check_name("reader group", name, max_chars=PREFIXED_NAME_MAX_CHARS)
        named = [streams] if isinstance(streams, str) else list(streams)
        if not all(isinstance(key, str) for key in named):
            raise InvalidArgumentError(f"the streams of a reader group must be strings, not {streams!r}")
        keys = [key if "/" in key else f"{self.scope}/{key}" for key in named]
        first, last = _by_stream(starts, keys), _by_stream(ends, keys)
        if not keys or len(set(keys)) != len(keys) or any(key.count("/") != 1 for key in keys):
            raise InvalidArgumentError(
                "a reader group needs at least one stream, each once, as `stream` or `scope/stream`"
            )
        if refresh_ms <= 0 or dead_after_ms < 4 * refresh_ms or checkpoint_interval_ms < 0:
            raise InvalidArgumentError(
                "refresh_ms must be above 0, dead_after_ms at least four times that, checkpoint_interval_ms not below 0"
            )
        for key in first.keys() & last.keys():
            await self._check_order(first[key], last[key])
        begins: list[tuple[NamedRange, int]] = []
        for key in keys:
            begins += await pieces_of(
                self._stores, first.get(key) or await self._stores.controller.head(*key.split("/"))
            )
        finish = [piece for cut in last.values() for piece in await pieces_of(self._stores, cut)]
        timing = Timing(refresh_ms, dead_after_ms, checkpoint_interval_ms)
        state = first_state("", begins, finish, streams=keys, timing=timing, retention=retention)
        new_id = str(UUID(bytes=NADIS_ID + os.urandom(12)))
        group_id = await self._stores.controller.create_reader_group(
            self.scope,
            name,
            new_id,
            [first.get(key) or cut_of(key, {}) for key in keys],
            last.values(),
            refresh_ms=refresh_ms,
            checkpoint_interval_ms=checkpoint_interval_ms,
            retention=retention.value,
        )
        _check_nadis(group_id, self.scope, name)
        state = replace(state, group_id=group_id)
        if not await StoredGroupState(self._stores, self.scope, name).create(state):
            return False
        if retention is not StreamDataRetention.NONE:
            await release(self._stores, self.scope, name, group_id, cuts_of(state.positions()).values())
        return True

    async def _check_order(self, start: StreamCut, end: StreamCut) -> None:
        with suppress(TruncatedError):  # a truncated start is read as a gap
            order = await StreamCuts(self._stores, start.scope, start.stream).compare(start, end)
            if not order.is_at_or_before:
                raise InvalidStreamCutError(f"the end cut of {start.scope}/{start.stream} is before its start cut")

    async def get_reader_group(self, name: str) -> ReaderGroup:
        """Return the group with that name; ReaderGroupNotFoundError."""
        group = ReaderGroup(self._stores, self._adopt, self.scope, name)
        await StoredGroupState(self._stores, self.scope, name).read()
        return group

    async def delete_reader_group(self, name: str) -> bool:
        """Delete a group; return False if it doesn't exist. Its readers fail with ReaderGroupNotFoundError."""
        controller = self._stores.controller
        try:
            group_id = await controller.reader_group_id(self.scope, name)
        except ReaderGroupNotFoundError:
            return False
        _check_nadis(group_id, self.scope, name)
        return await controller.delete_reader_group(self.scope, name, group_id)

    async def list_reader_groups(self) -> list[str]:
        """Return the names of all groups of the scope, including other clients' groups."""
        names = await self._stores.controller.list_streams(self.scope)
        return sorted(n.removeprefix(READER_GROUP_PREFIX) for n in names if n.startswith(READER_GROUP_PREFIX))

    async def lag(self, name: str) -> list[GroupLagReport]:
        """Return the group's lag on each of its streams, relative to the tail or to the group's end cut.

        The lag of another client's group is known only if it publishes its position to the controller; otherwise its
        records have None, with the reason. ReaderGroupNotFoundError.

        >>> import nadi
        >>> with nadi.StreamManager() as manager:  # doctest: +SKIP
        ...     for lag in manager.reader_group_manager("home").lag("billing"):
        ...         print(lag.stream, lag.lag_bytes, lag.lag_seconds, lag.readers)
        """
        check_name("reader group", name, max_chars=PREFIXED_NAME_MAX_CHARS)
        return await lag_of(self._stores, self.scope, name)


def _by_stream(cuts: Iterable[StreamCut], streams: list[str]) -> dict[str, StreamCut]:
    cuts_by_stream = {}
    for cut in cuts:
        check_is_cut(cut)
        cuts_by_stream[f"{cut.scope}/{cut.stream}"] = cut
    unknown = cuts_by_stream.keys() - set(streams)
    if unknown:
        raise InvalidStreamCutError(f"the cut of {min(unknown)} doesn't belong to a stream of the group: leave it out")
    return cuts_by_stream


def _check_nadis(group_id: str, scope: str, name: str) -> None:
    if not is_nadis(group_id):
        raise AlreadyExistsError("reader group", f"{scope}/{name}, created by another client that can't share it,")
