"""Storage of a group's state in a table, with compare-and-set changes.

The state has one key, so each change is one conditional update; a reader whose update fails reads the state and plans
again. An update whose reply was lost may have taken effect; the next step is planned from the stored state either way.
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
    """The stored state of one group."""

    def __init__(self, stores: SegmentStores, scope: str, group: str) -> None:
        self.scope, self.group = scope, group
        self._stores = stores
        self._table = Table(stores, scope, READER_GROUP_PREFIX + group)

    async def create(self, state: GroupState) -> bool:
        """Create the state, replacing that of an earlier group of this name; return False if this group has one."""
        await self._table.create()
        tries = Tries(f"the state of reader group {self.scope}/{self.group}")
        while True:
            stored = await value_or_none(self._table, STATE_KEY)
            if stored is not None and _decode(stored.value).group_id == state.group_id:
                return False
            try:
                await self._table.put(STATE_KEY, _encode(state), ABSENT if stored is None else stored.version)
                return True
            except ConditionFailedError:
                await tries.lost()

    async def read(self) -> GroupState:
        """Return the current state; ReaderGroupNotFoundError."""
        return (await self._read())[0]

    async def change(self, change: Callable[[GroupState], GroupState], timeout_s: float | None = None) -> GroupState:
        """Apply `change` to the state, again after a conflict; return the stored state.

        If `change` returns its argument, nothing is stored. timeout_s: None means the client's.
        """
        limit_s = self._stores.timeout_s if timeout_s is None else timeout_s
        trouble: UnavailableError | None = None  # of the last attempt, until a request is answered
        lost = 0  # attempts that lost to another change
        answered_at = time.monotonic()  # time of the server's last answer
        backoff = Backoff(longest_s=0.1)

        def why() -> NadiError | None:
            return trouble or self._stores.waits_for()

        def failed() -> str:
            problem = f"the state of reader group {self.scope}/{self.group} couldn't be changed within {limit_s:g} s"
            silence_s = time.monotonic() - answered_at
            if why():
                return problem
            if lost and silence_s < limit_s / 2:
                return f"{problem}: each of {lost:,} attempts lost to another change"
            return f"{problem}: its server didn't answer for {silence_s:.1f} s"

        async with TimeLimit(limit_s, failed, why):
            while True:
                state, version = await self._read()
                trouble, answered_at = None, time.monotonic()
                changed = change(state)
                if changed is state:
                    return state
                try:
                    await self._table.put(STATE_KEY, _encode(changed), version)
                    return changed
                except ConditionFailedError:
                    lost, answered_at = lost + 1, time.monotonic()
                except (ClosedError, StorageFullError):  # on a full disk nothing was stored, and that may last
                    raise
                except UnavailableError as error:  # it may have been stored: read it again
                    trouble = error
                await backoff.pause()

    async def _read(self) -> tuple[GroupState, int]:
        stored = await value_or_none(self._table, STATE_KEY)
        if stored is None:
            raise ReaderGroupNotFoundError(self.scope, self.group)
        return _decode(stored.value), stored.version


async def release(stores: SegmentStores, scope: str, group: str, group_id: str, cuts: Iterable[StreamCut]) -> None:
    """Report to the controller that the group no longer needs events before these cuts: retention truncates only events
    that all groups have released. InvalidStreamCutError if a cut isn't a boundary, or is before an earlier release."""
    for cut in cuts:
        await stores.controller.update_subscriber_stream_cut(f"{scope}/{group}", group_id, cut)


def _encode(state: GroupState) -> bytes:
    """Encode a state, dropping old checkpoints if it exceeds the size of a table value."""
    while True:
        data = _encoder.encode(state)
        try:
            _decoder.decode(data)  # storing an unreadable state would break the group for all its readers
        except msgspec.ValidationError as error:
            raise InvalidArgumentError(
                f"the change would make the reader group's state unreadable ({error}): pass ids and names as strings, "
                "offsets as integers"
            ) from None
        if len(data) <= TABLE_VALUE_MAX_BYTES:
            return data
        complete = [checkpoint for checkpoint in state.checkpoints if checkpoint.is_complete]
        if not complete:
            raise InvalidArgumentError(
                f"the reader group's state has {len(data):,} bytes for {len(state.segments):,} segments; the limit is "
                f"{TABLE_VALUE_MAX_BYTES:,}: create a group for each stream"
            )
        state = replace(
            state, checkpoints=tuple(checkpoint for checkpoint in state.checkpoints if checkpoint is not complete[0])
        )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(GroupState)


def _decode(data: bytes) -> GroupState:
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(
            f"the reader group's state can't be read ({error}): use the nadi version that wrote it, or another group"
        ) from error
