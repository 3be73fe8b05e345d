"""Lock on a store for migrating its data, or undoing that: one process at a time, on any machine.

The holder keeps setting a unique value in the store; other processes see it change, and are rejected. The value of a
killed holder stops changing: the next process watches it for a while, by its own clock, and takes over. A holder that
was paused that long learns so before its next important step.

On release, the value says that it has ended, but stays: a store can compare before setting a value, but not before
deleting it, and a late deletion would hit the next holder's value.

Also the mark in a store that a migration fills and that has no owner yet: written once, with a checksum.
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
from nadi.limits import MIGRATION_LOCK_BEAT_S, MIGRATION_LOCK_DEAD_S
from nadi.object_log.checksummed_lines import line_of, value_of
from nadi.object_log.engine import LogEngine, Registry, VersionedValue
from nadi.object_log.identity import MIGRATION, MIGRATION_LOCK
from nadi.object_log.outcomes import patiently, stored_patiently, was_set_patiently
from nadi.runtime import REAL, Runtime

log = logging.getLogger(__name__)


class Incoming(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mark of a migration into a store. source: unique id of the data's origin. url: of the origin. containers: number
    in the target."""

    source: str
    url: str
    migration: str
    containers: int


class _LockHolder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Current holder of the lock, or the last one: has_ended."""

    host: str
    process: int
    nonce: str
    has_ended: bool = False


class MigrationLock:
    """Lock on the store at that URL, held within its context."""

    def __init__(self, registry: Registry, url: str, runtime: Runtime = REAL) -> None:
        self._registry, self._url, self._runtime = registry, url, runtime
        self._version: str | None = None
        self._next = b""  # value being set: an unanswered attempt is repeated with the same value
        self._one_at_a_time = asyncio.Lock()
        self._is_lost = False

    async def __aenter__(self) -> Self:
        """Acquire the lock. ConflictError: another process holds it. UnavailableError, StoreError: the store can't
        answer."""
        current = await self._current()
        if current is not None and not has_ended(current):
            current = await self._watched(current)
        self._version = current.version if current is not None else None
        await self.keep()
        self._beats = asyncio.create_task(self._beat())
        return self

    async def _watched(self, known: VersionedValue) -> VersionedValue | None:
        """Return the value if it doesn't change until its holder counts as dead, or is released; None if it is removed.

        Counts polls, not time: if this machine is paused, the holder may be too, and gets its time once both resume.
        """
        pause_s = min(MIGRATION_LOCK_BEAT_S, MIGRATION_LOCK_DEAD_S) / 4
        for _ in range(math.ceil(MIGRATION_LOCK_DEAD_S / pause_s)):
            await self._runtime.sleep(pause_s)
            current = await self._current()
            if current is None or has_ended(current):
                return current
            if current != known:
                raise self._conflict(current)
        return known

    async def keep(self) -> None:
        """Verify, before an important step, that this process still holds the lock. Raises as `__aenter__`."""
        async with self._one_at_a_time:
            await self._set()

    async def _set(self, *, ends: bool = False) -> None:
        if self._is_lost:
            raise self._conflict(await self._current())
        value = _LockHolder(socket.gethostname(), os.getpid(), self._runtime.unique(), ends)
        self._next = self._next or msgspec.json.encode(value)
        entry = await was_set_patiently(self._registry, MIGRATION_LOCK, self._next, self._version, self._runtime)
        self._next = b""
        if entry is None:
            self._is_lost = True
            raise self._conflict(await self._current())
        self._version = entry.version

    async def _beat(self) -> None:
        while not self._is_lost:  # otherwise the next step raises
            await self._runtime.sleep(MIGRATION_LOCK_BEAT_S)
            try:
                await self.keep()
            except NadiError as error:
                if not self._is_lost:
                    log.warning("renewing the migration lock failed: %s; retrying", error)

    async def __aexit__(self, *_: object) -> None:
        self._beats.cancel()
        await asyncio.gather(self._beats, return_exceptions=True)
        try:
            if self._next:  # an unfinished beat
                await self._set()
            await self._set(ends=True)
        except NadiError as error:  # the next process waits until this one counts as dead
            log.info("releasing the migration lock of %s failed: %s", self._url, error)

    async def _current(self) -> VersionedValue | None:
        return await patiently(f"read {MIGRATION_LOCK}", lambda: self._registry.get(MIGRATION_LOCK), self._runtime)

    def _conflict(self, current: VersionedValue | None) -> ConflictError:
        holder = None if current is None else _holder(current)
        by = "" if holder is None else f" (process {holder.process} on {holder.host})"
        return ConflictError(
            f"another `nadi migrate`{by} is working on {self._url}: wait for it or stop it, then run this again. A "
            f"killed process is detected within {MIGRATION_LOCK_DEAD_S:g} s"
        )


def _holder(entry: VersionedValue) -> _LockHolder | None:
    """Decode the holder; None if the value is unreadable."""
    try:
        return msgspec.json.decode(entry.value, type=_LockHolder)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def has_ended(entry: VersionedValue) -> bool:
    """Return whether the holder has released the lock."""
    holder = _holder(entry)
    return holder is not None and holder.has_ended


async def incoming(engine: LogEngine, url: str) -> Incoming | None:
    """Return the mark of the migration that fills the store; None if there is none. StoreError: the mark is damaged, or
    the store refuses."""
    raw = await patiently(f"read {MIGRATION}", lambda: engine.get(MIGRATION), REAL)
    return _decoded(bytes(raw), url) if raw is not None else None


async def begin(engine: LogEngine, url: str, new: Incoming) -> Incoming:
    """Write the mark unless there is one; return the store's mark. StoreError: as `incoming`."""
    _, raw = await stored_patiently(engine, MIGRATION, line_of(msgspec.json.encode(new)), REAL)
    return _decoded(raw, url)


def _decoded(raw: bytes, url: str) -> Incoming:
    value = value_of(raw)
    try:
        if value is not None:
            return msgspec.json.decode(value, type=Incoming)
        reason = "wrong checksum"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error)
    raise StoreError(
        f"{MIGRATION} in {url}, which names the source of a migration, is damaged ({reason}). If the source refuses to "
        "start because its data was moved here, restore it with `nadi migrate --undo`; then delete all objects under "
        f"{url}, which the source still has, and run the migration again"
    ) from None
