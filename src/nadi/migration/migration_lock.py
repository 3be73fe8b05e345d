"""Whose turn it is to move a store's data, or to take that back: one process at a time, on whichever machine.

It sets a value in the store again and again, each time anew; whoever comes meanwhile sees that it changes, and is
refused. One that was killed leaves a value that doesn't change any more: the next one watches it for a while, by its
own clock, and takes its place. One that stood still for so long, and wakes up, is told so before each step that
counts.

Who has done says so in the value, and leaves it there: a store can set a value only if it is still one's own, and can't
so delete it, and a deletion that comes late would be that of the next one's.

The mark in a store that a migration fills, and that is nobody's yet: written once, and with a checksum.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from typing import Self

import msgspec

from nadi.errors import ConflictError, NadiError, StoreError
from nadi.limits import MIGRATION_TURN_BEAT_S, MIGRATION_TURN_DEAD_S
from nadi.object_log.checksummed_lines import line_of, value_of
from nadi.object_log.engine import LogEngine, Registry, VersionedValue
from nadi.object_log.identity import MIGRATION, TURN
from nadi.object_log.outcomes import patiently, stored_patiently, was_set_patiently
from nadi.runtime import REAL, Runtime

log = logging.getLogger(__name__)


class Incoming(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """source: what the data comes from, by an id of its own. url: where that is. containers: how many the target is to
    have."""

    source: str
    url: str
    migration: str
    containers: int


class _LockHolder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who has the turn, or had it: has_ended."""

    host: str
    process: int
    nonce: str
    has_ended: bool = False


class Turn:
    """Of the store at that URL. Opened as a context, which has the turn."""

    def __init__(self, registry: Registry, url: str, runtime: Runtime = REAL) -> None:
        self._registry, self._url, self._runtime = registry, url, runtime
        self._version: str | None = None
        self._next = b""  # what is being set: a try without an answer is made again with the same
        self._one_at_a_time = asyncio.Lock()
        self._is_lost = False

    async def __aenter__(self) -> Self:
        """ConflictError: it is another's. UnavailableError, StoreError: the store can't say."""
        there = await self._there()
        if there is not None and not has_ended(there):
            there = await self._watched(there)
        self._version = there.version if there is not None else None
        await self.keep()
        self._beats = asyncio.create_task(self._beat())
        return self

    async def _watched(self, there: VersionedValue) -> VersionedValue | None:
        """What is there if it doesn't change for as long as it takes to be dead, or is given back; None if it is taken
        away. Counted in looks: where the machine stands still, so may the other, and it has its time once that goes
        on."""
        pause_s = min(MIGRATION_TURN_BEAT_S, MIGRATION_TURN_DEAD_S) / 4
        for _ in range(math.ceil(MIGRATION_TURN_DEAD_S / pause_s)):
            await self._runtime.sleep(pause_s)
            now = await self._there()
            if now is None or has_ended(now):
                return now
            if now != there:
                raise self._taken(now)
        return there

    async def keep(self) -> None:
        """Make sure that it still is this one's, before a step that counts. Raises as `__aenter__`."""
        async with self._one_at_a_time:
            await self._set()

    async def _set(self, *, ends: bool = False) -> None:
        if self._is_lost:
            raise self._taken(await self._there())
        value = _LockHolder(socket.gethostname(), os.getpid(), self._runtime.unique(), ends)
        self._next = self._next or msgspec.json.encode(value)
        entry = await was_set_patiently(self._registry, TURN, self._next, self._version, self._runtime)
        self._next = b""
        if entry is None:
            self._is_lost = True
            raise self._taken(await self._there())
        self._version = entry.version

    async def _beat(self) -> None:
        while not self._is_lost:  # otherwise the next step is told
            await self._runtime.sleep(MIGRATION_TURN_BEAT_S)
            try:
                await self.keep()
            except NadiError as error:
                if not self._is_lost:
                    log.warning("the store doesn't say whose turn it is, and is asked again: %s", error)

    async def __aexit__(self, *_: object) -> None:
        self._beats.cancel()
        await asyncio.gather(self._beats, return_exceptions=True)
        try:
            if self._next:  # what a beat hasn't finished
                await self._set()
            await self._set(ends=True)
        except NadiError as error:  # the next one waits until this one counts as dead
            log.info("the turn at %s could not be given back: %s", self._url, error)

    async def _there(self) -> VersionedValue | None:
        return await patiently(f"read {TURN}", lambda: self._registry.get(TURN), self._runtime)

    def _taken(self, there: VersionedValue | None) -> ConflictError:
        holder = None if there is None else _holder(there)
        whose = "" if holder is None else f", by process {holder.process} on {holder.host}"
        return ConflictError(
            f"the data of {self._url} is being moved by another `nadi migrate`, or taken back{whose}: wait until that "
            f"has ended, or stop it, then start this one again. One that was killed is noticed within "
            f"{MIGRATION_TURN_DEAD_S:g} s"
        )


def _holder(there: VersionedValue) -> _LockHolder | None:
    """None: it can't be read."""
    try:
        return msgspec.json.decode(there.value, type=_LockHolder)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def has_ended(turn: VersionedValue) -> bool:
    """Whether whoever had that turn has given it back."""
    holder = _holder(turn)
    return holder is not None and holder.has_ended


async def begun(engine: LogEngine, url: str) -> Incoming | None:
    """What fills the store at that URL; None if nothing does. StoreError: the mark is damaged, or the store refuses."""
    raw = await patiently("read what it holds", lambda: engine.get(MIGRATION), REAL)
    return _decoded(bytes(raw), url) if raw is not None else None


async def begin(engine: LogEngine, url: str, new: Incoming) -> Incoming:
    """What fills the store: that one, if nothing did. StoreError: as `begun`."""
    _, raw = await stored_patiently(engine, MIGRATION, line_of(msgspec.json.encode(new)), REAL)
    return _decoded(raw, url)


def _decoded(raw: bytes, url: str) -> Incoming:
    value = value_of(raw)
    try:
        if value is not None:
            return msgspec.json.decode(value, type=Incoming)
        why = "its checksum doesn't fit"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = str(error)
    raise StoreError(
        f"{MIGRATION} in {url} is damaged ({why}): it says what this store is being filled from. If the source refuses "
        "to start because its data was moved there, let it have that back with `nadi migrate --undo`; then remove all "
        f"that is in {url}, of which the source has everything, and start the migration again"
    ) from None
