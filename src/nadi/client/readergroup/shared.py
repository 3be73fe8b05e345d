"""The group's state in a table: read it, change it, and nobody's change is lost.

One key holds all of it, so each change is one conditional update; a reader whose update met another
version reads and plans again. An update whose answer was lost may have been made: what follows is
planned from what is stored, so that does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from nadi.client.control.patience import Backoff, TimeLimit
from nadi.client.readergroup.state import GroupState
from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.table import ABSENT, Table
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    InvalidArgumentError,
    NadiError,
    ProtocolError,
    ReaderGroupNotFoundError,
    SegmentNotFoundError,
    StorageFullError,
    UnavailableError,
)
from nadi.limits import TABLE_VALUE_MAX_BYTES
from nadi.naming import READER_GROUP_PREFIX

_KEY = b"state"
_Result = TypeVar("_Result")
Change = Callable[[GroupState], tuple[GroupState, _Result]]


class SharedState:
    """The state of one group, and the version of what was read last."""

    def __init__(self, stores: SegmentStores, scope: str, group: str) -> None:
        self.scope, self.group = scope, group
        self._stores = stores
        self._table = Table(stores, scope, READER_GROUP_PREFIX + group)

    async def create(self, state: GroupState) -> bool:
        """False if the group of that id has a state; one of an earlier group of this name is replaced."""
        await self._table.create()
        while True:
            held = await self._table.get(_KEY)
            if held is not None and _decode(held.value).group_id == state.group_id:
                return False
            try:
                await self._table.put(_KEY, _encode(state), ABSENT if held is None else held.version)
            except ConditionFailedError:
                continue
            return True

    async def read(self) -> GroupState:
        """The state now; ReaderGroupNotFoundError if there is none."""
        return (await self._read())[0]

    async def change(self, change: Change[_Result], timeout_s: float | None = None) -> tuple[GroupState, _Result]:
        """Apply `change` to the state, again until nobody else was faster; what it returned at last.

        Returning the state it was given means that there is nothing to store. timeout_s: None is the client's.
        """
        limit_s = self._stores.timeout_s if timeout_s is None else timeout_s
        trouble: UnavailableError | None = None  # of the last try, until a request is answered
        lost = 0  # tries before which others changed it
        heard_at = time.monotonic()  # of the server, last
        backoff = Backoff(0.1)

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
                changed, result = change(state)
                if changed is state:
                    return state, result
                try:
                    await self._table.put(_KEY, _encode(changed), version)
                    return changed, result
                except ConditionFailedError:
                    lost, heard_at = lost + 1, time.monotonic()
                except (ClosedError, StorageFullError):  # of a full disk: nothing was stored, and that may last
                    raise
                except UnavailableError as error:  # it may have been stored: look
                    trouble = error
                await backoff.pause()

    async def _read(self) -> tuple[GroupState, int]:
        try:
            held = await self._table.get(_KEY)
        except SegmentNotFoundError:
            held = None
        if held is None:
            raise ReaderGroupNotFoundError(self.scope, self.group)
        return _decode(held.value), held.version


def _encode(state: GroupState) -> bytes:
    """The record; old checkpoints go if it would be larger than a table value may be."""
    while True:
        data = _encoder.encode(state)
        _check_readable(data)
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


def _check_readable(data: bytes) -> None:
    """A state that can't be read would end the group for all its readers."""
    try:
        _decoder.decode(data)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(
            f"this would make the reader group's state unreadable ({error}): ids and names are text, offsets integers"
        ) from None


def _decode(data: bytes) -> GroupState:
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(
            f"the reader group's state can't be read ({error}): use the nadi version that wrote it, or another group"
        ) from error
