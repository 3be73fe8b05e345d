"""The group's state in a table: read it and change it without losing anybody's change.

One key holds all of it, so each change is one conditional update; a reader whose update met another
version reads and plans again. An update whose reply was lost may have been made: that doesn't matter, as
the next step is planned from what is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from nadi.backoff import Backoff, Tries
from nadi.client.control.time_limit import TimeLimit
from nadi.client.readergroup.state import GroupState
from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.table import ABSENT, Table, value_or_none
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    InvalidArgumentError,
    NadiError,
    ProtocolError,
    ReaderGroupNotFoundError,
    StorageFullError,
    UnavailableError,
)
from nadi.limits import TABLE_VALUE_MAX_BYTES
from nadi.model.readergroup import STATE_KEY
from nadi.model.streamcut import StreamCut
from nadi.naming import READER_GROUP_PREFIX


class StoredGroupState:
    def __init__(self, stores: SegmentStores, scope: str, group: str) -> None:
        self.scope, self.group = scope, group
        self._stores = stores
        self._table = Table(stores, scope, READER_GROUP_PREFIX + group)

    async def create(self, state: GroupState) -> bool:
        """Create the state; return False if this group has one. That of an earlier group of this name is replaced."""
        await self._table.create()
        tries = Tries(f"the state of reader group {self.scope}/{self.group}")
        while True:
            held = await value_or_none(self._table, STATE_KEY)
            if held is not None and _decode(held.value).group_id == state.group_id:
                return False
            try:
                await self._table.put(STATE_KEY, _encode(state), ABSENT if held is None else held.version)
                return True
            except ConditionFailedError:
                await tries.lost()

    async def read(self) -> GroupState:
        """Return the current state; ReaderGroupNotFoundError if there is none."""
        return (await self._read())[0]

    async def change(self, change: Callable[[GroupState], GroupState], timeout_s: float | None = None) -> GroupState:
        """Apply `change` to the state, again if somebody else was faster; return the state stored.

        If it returns the state it was passed, there is nothing to store. timeout_s: None is the client's.
        """
        limit_s = self._stores.timeout_s if timeout_s is None else timeout_s
        trouble: UnavailableError | None = None  # of the last try, until a request is answered
        lost = 0  # tries that others' changes forestalled
        heard_at = time.monotonic()  # when the server last answered
        backoff = Backoff(longest_s=0.1)

        def why() -> NadiError | None:
            return trouble or self._stores.waits_for()

        def failed() -> str:
            what = f"the state of reader group {self.scope}/{self.group} could not be changed within {limit_s:g} s"
            silence_s = time.monotonic() - heard_at
            if why():
                return what
            if lost and silence_s < limit_s / 2:
                return f"{what}: others changed it before each of {lost:,} tries"
            return f"{what}: its server did not answer for {silence_s:.1f} s"

        async with TimeLimit(limit_s, failed, why):
            while True:
                state, version = await self._read()
                trouble, heard_at = None, time.monotonic()
                changed = change(state)
                if changed is state:
                    return state
                try:
                    await self._table.put(STATE_KEY, _encode(changed), version)
                    return changed
                except ConditionFailedError:
                    lost, heard_at = lost + 1, time.monotonic()
                except (ClosedError, StorageFullError):  # of a full disk: nothing was stored, and that may last
                    raise
                except UnavailableError as error:  # it may have been stored: look
                    trouble = error
                await backoff.pause()

    async def _read(self) -> tuple[GroupState, int]:
        held = await value_or_none(self._table, STATE_KEY)
        if held is None:
            raise ReaderGroupNotFoundError(self.scope, self.group)
        return _decode(held.value), held.version


async def release(stores: SegmentStores, scope: str, group: str, group_id: str, cuts: Iterable[StreamCut]) -> None:
    """Tell the controller that the group no longer needs what lies before the cuts: retention truncates only what all
    groups have released. InvalidStreamCutError if one isn't a boundary, or not after the last."""
    for cut in cuts:
        await stores.controller.update_subscriber_stream_cut(f"{scope}/{group}", group_id, cut)


def _encode(state: GroupState) -> bytes:
    """The record; old checkpoints are dropped if it would be too large for a table value."""
    while True:
        data = _encoder.encode(state)
        try:
            _decoder.decode(data)  # a state that can't be read would end the group for all its readers
        except msgspec.ValidationError as error:
            raise InvalidArgumentError(
                f"this would make the reader group's state unreadable ({error}): ids and names are text, offsets "
                "integers"
            ) from None
        if len(data) <= TABLE_VALUE_MAX_BYTES:
            return data
        complete = [one for one in state.checkpoints if one.is_complete]
        if not complete:
            raise InvalidArgumentError(
                f"the reader group's state has {len(data):,} bytes for {len(state.segments):,} segments and can have "
                f"{TABLE_VALUE_MAX_BYTES:,}: make one group for each stream"
            )
        state = replace(state, checkpoints=tuple(one for one in state.checkpoints if one is not complete[0]))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(GroupState)


def _decode(data: bytes) -> GroupState:
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(
            f"the reader group's state can't be read ({error}): use the nadi version that wrote it, or another group"
        ) from error
