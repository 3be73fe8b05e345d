"""Keeps a container's snapshots in tier 2 close to its state, so that the log can be released soon.

The container calls `take` while no commit of its state runs; the data to send is copied there, and sent by a task while
everything continues. While tier 2 refuses data, the log grows, and attempts are repeated with growing pauses.

A snapshot releases the log only while it is known to be intact: after it was just stored, or after the state was
restored from it; the scrub verifies it every week (`verify`). If any of its objects, which are stored twice, is
damaged, the log is retained, and a new full snapshot is stored at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import lmdb
from msgspec.structs import replace

from nadi import limits
from nadi.backoff import Backoff
from nadi.errors import DamagedStateError, FencedError, NadiError, StorageFullError, UnavailableError
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.counters import StoreCounters
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.recovery.snapshots import SnapshotError
from nadi.segmentstore.state.commit import Changes, merge
from nadi.segmentstore.state.metadata import STATE_FILE, ContainerMetadata, verify
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecords, DamagedRecordError, SnapshotManifest, name_of

log = logging.getLogger(__name__)

_COPY_FILE = "snapshot.tmp"  # a copy of the state while it is sent
_SMALL_BYTES = 64 * limits.KIB  # deltas up to this size never need a new base


class SnapshotPace(NamedTuple):
    """When to take snapshots: at a checkpoint, after `interval_s`, or once the log has grown by `log_bytes`. A full one
    replaces deltas after that many `deltas`, or once they exceed the fraction `deltas_part` of its size."""

    interval_s: float = limits.SNAPSHOT_INTERVAL_S
    log_bytes: int = limits.SNAPSHOT_LOG_BYTES
    deltas: int = limits.SNAPSHOT_DELTAS
    deltas_part: float = 0.25


PACE = SnapshotPace()


class RecordOwner(Protocol):
    """The owner of a container, whose record names the valid snapshot: see `storage.ContainerStorage`. After a
    FencedError nothing here is called. sweeps: whether unreferenced objects are deleted: not if a later owner's may be
    among them."""

    sweeps: bool

    async def claim_record(self) -> tuple[ContainerRecords, int]: ...
    def start_after(self, sequence: int) -> ChainStart: ...
    def released(self, start: ChainStart) -> None: ...
    def is_disk_full(self, error: Exception) -> bool: ...
    def release_space(self) -> bool: ...


class Snapshotter:
    """The snapshots of one container. folder: has its state. chunks: stores their objects. pace: `PACE` by default."""

    def __init__(
        self,
        container: int,
        folder: Path,
        chunks: ChunkStore,
        owner: RecordOwner,
        runtime: Runtime = REAL,
        pace: SnapshotPace | None = None,
    ) -> None:
        self.counts = StoreCounters()  # of its store, once open
        self.current_at = runtime.monotonic()  # time of the last snapshot, or of nothing to store
        self.error: str = ""  # error of the last attempt to store or read one
        self.damage: str = ""  # damage of the newest one, until it is replaced,
        self.renewed: str = ""  # and damage of the last one replaced for it
        self.on_stored: Callable[[], None] = lambda: None
        self.on_damage: Callable[[DamagedStateError], None] = lambda error: None
        self.on_fenced: Callable[[FencedError], None] = lambda error: None
        self._container = container
        self._folder = folder
        self._chunks = chunks
        self._runtime = runtime
        self._owner = owner
        self._pace = pace if pace is not None else PACE
        self._fenced_by: FencedError | None = None  # another server owns the snapshots: change nothing
        self._manifest: SnapshotManifest | None = None
        self._is_known = False  # to be intact
        self._base_due = True  # a base, because the changes since the last snapshot are unknown
        self._copied_sequence = 0  # up to here all changes are in a snapshot, being sent, or in `_unsent`
        self._unsent: Changes = {}  # changes since the newest snapshot, unless a base is due
        self._unsent_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._backoff = Backoff(first_s=self._pace.interval_s, longest_s=limits.SNAPSHOT_RETRY_MAX_S)
        self._next_at = 0.0
        self._log_bytes = 0

    @property
    def sequence(self) -> int:
        """The frame up to which tier 2 has an intact snapshot, and the log may be released; 0 if it has none."""
        return self._manifest.sequence if self._manifest is not None and self._is_known else 0

    async def open(self, manifest: SnapshotManifest | None, damaged: Sequence[str] = ()) -> None:
        """Continue from the snapshot from which the state was restored, if any. damaged: problems of its objects whose
        copies were used."""
        await self.ended()
        self._copy.unlink(missing_ok=True)
        self._manifest, self._is_known = manifest, True
        self._copied_sequence = manifest.sequence if manifest is not None else 0
        self._unsent, self._unsent_bytes, self._base_due = {}, 0, manifest is None
        self._next_at = self._runtime.monotonic() + (self._pace.interval_s if manifest is not None else 0.0)
        if damaged or self.damage:
            self._discard("; ".join(damaged) or self.damage)

    async def verify(self, pause: Callable[[int], Awaitable[None]]) -> str:
        """Read the stored snapshot; return its damage, or "". `pause` gets each object's size. A damaged snapshot, or
        one with a damaged record, is discarded. FencedError: another server owns it; `on_fenced` was called.
        UnavailableError: tier 2 can't be read."""
        if self._manifest is None or self.damage:
            return self.damage
        manifest = self._manifest
        try:
            for part in manifest.parts:
                for name in part.names:
                    await snapshots.read_object(self._chunks, name, part)
                    await pause(part.size_bytes)
            records, epoch = await self._owner.claim_record()
            try:
                await records.still_claimed(self._container, epoch)
            except DamagedRecordError as error:
                raise SnapshotError(str(error), error.name) from error
            is_sending = self._sending is not None and not self._sending.done()  # it may be setting them now
            if (problem := await records.unequal(self._container)) and not is_sending:
                raise SnapshotError(problem, name_of(self._container))
        except FencedError as error:
            self._fenced(error)
            raise
        except SnapshotError as error:
            newest = self._manifest
            if newest is manifest or error.name in {name_of(self._container), *newest.names}:
                self._discard(str(error))
            # else a new snapshot has just replaced it
        return self.damage

    def _fenced(self, error: FencedError) -> None:
        self._fenced_by = error
        self.on_fenced(error)

    def _discard(self, problem: str) -> None:
        log.error(
            "container %d: the snapshot of its state is damaged; the log is retained until a new one is stored: %s",
            self._container,
            problem,
        )
        self.damage = problem
        self._is_known = False
        self._forget_unsent()
        self._next_at = self._runtime.monotonic()

    def due(self, metadata: ContainerMetadata, sequence: int, log_bytes: int, *, hurry: bool = False) -> bool:
        """Return whether `take` has anything to do. log_bytes: written to the log so far. hurry: the log must
        shrink."""
        if self._fenced_by is not None or (self._sending is not None and not self._sending.done()):
            return False
        if sequence == self._copied_sequence and not self._base_due and not self._unsent:
            self.current_at = self._runtime.monotonic()
            return False
        now = self._runtime.monotonic()
        has_grown = hurry or log_bytes - self._log_bytes >= self._pace.log_bytes
        return now >= self._next_at or (self._backoff.is_fresh and has_grown)

    @property
    def _copy(self) -> Path:
        return self._chunks.sealing.hidden(self._folder / _COPY_FILE)

    def hasten(self) -> None:
        """Take the next snapshot, of all changes, at the next checkpoint."""
        self._next_at = self._runtime.monotonic()

    async def take(self, metadata: ContainerMetadata, sequence: int, log_bytes: int) -> None:
        """Copy the changes since the last snapshot, and start sending them."""
        self._next_at = self._runtime.monotonic() + self._pace.interval_s
        self._log_bytes = log_bytes
        changes, size_bytes = metadata.take_changes()
        self._copied_sequence = sequence
        if (
            changes is None
            or self._unsent_bytes + size_bytes > limits.STATE_CHANGES_MAX_BYTES
            or self._deltas_are_enough()
        ):
            self._forget_unsent()
        if self._base_due or changes is None:
            try:
                await self._runtime.in_thread(metadata.copy, self._copy)
            except (NadiError, OSError, lmdb.Error) as error:
                self._copy.unlink(missing_ok=True)
                self._failed(error)
                return
            send = partial(self._send_base, sequence)
        else:
            merge(self._unsent, changes)
            self._unsent_bytes += size_bytes
            send = partial(self._send_delta, sequence)
        self._sending = asyncio.create_task(self._store(send), name=f"snapshot-{self._container}")

    def _forget_unsent(self) -> None:
        """Drop the changes since the newest snapshot: the next one is a base."""
        self._unsent, self._unsent_bytes, self._base_due = {}, 0, True

    def _deltas_are_enough(self) -> bool:
        manifest = self._manifest
        if manifest is None:
            return True
        base_bytes, deltas_bytes = (
            sum(part.size_bytes for part in parts) for parts in (manifest.base, manifest.deltas)
        )
        most_bytes = max(base_bytes * self._pace.deltas_part, _SMALL_BYTES)
        return len(manifest.deltas) >= self._pace.deltas or deltas_bytes > most_bytes

    async def _store(self, send: Callable[[], Awaitable[SnapshotManifest]]) -> None:
        began = self._runtime.monotonic()
        try:
            await self._chunks.refresh_keys()
        except NadiError as error:  # earlier keys remain good
            log.warning("container %d: a new data key can't be read, and is retried: %s", self._container, error)
        try:
            try:
                manifest = await send()
            except (NadiError, OSError) as error:
                if not self._owner.is_disk_full(error) or not self._owner.release_space():
                    raise
                manifest = await send()  # with the reserve: only a snapshot frees the log
            former, self._manifest = self._manifest, manifest
        except FencedError as error:
            self._fenced(error)
            return
        except (NadiError, OSError) as error:
            self._failed(error)
            return
        finally:
            self._copy.unlink(missing_ok=True)
        self.current_at = self._runtime.monotonic()
        self.counts.snapshots.add(self.current_at - began)
        self._backoff.reset()
        self.error = ""
        if self._is_known and self.damage:
            log.warning("container %d: a new snapshot has replaced the damaged one", self._container)
            self.renewed, self.damage = self.damage, ""
        self.on_stored()
        try:
            await self._delete_former(former, manifest)
        except NadiError as error:  # they are garbage: the next base deletes them
            log.info("container %d: the old snapshot can't be deleted yet: %s", self._container, error)

    async def _send_base(self, sequence: int) -> SnapshotManifest:
        pause = partial(self._runtime.rest, limits.CHECKPOINT_PAUSE_S)
        try:
            await self._runtime.in_thread(verify, self._copy, self._container, pause)
        except DamagedStateError as error:  # it would replace an intact snapshot
            self.on_damage(error)
            raise
        base = await snapshots.put_base(self._chunks, self._container, sequence, self._copy)
        manifest = await self._let_count(SnapshotManifest(self._container, sequence, base, ()))
        self._base_due, self._is_known = False, True
        return manifest

    async def _send_delta(self, sequence: int) -> SnapshotManifest:
        former = self._manifest
        assert former is not None, "a delta follows a base"
        stored = await self._runtime.in_thread(snapshots.pack_changes, self._unsent)
        name = snapshots.delta_name(self._container, sequence, self._runtime.unique())
        deltas = (*former.deltas, await snapshots.put(self._chunks, name, stored))
        return await self._let_count(replace(former, sequence=sequence, deltas=deltas))

    async def _let_count(self, manifest: SnapshotManifest) -> SnapshotManifest:
        """Publish the snapshot in the record. If that fails, delete its own objects if they are certainly unreferenced;
        otherwise they stay as garbage."""
        stored, epoch = await self._owner.claim_record()
        start = self._owner.start_after(manifest.sequence)
        try:
            await stored.set_snapshot(self._container, epoch, manifest, start)
        except (UnavailableError, StorageFullError):
            if stored.is_alone and (await stored.read(self._container)).record.snapshot != manifest:
                former = self._manifest.names if self._manifest is not None else set()
                await snapshots.delete_all(self._chunks, manifest.names - former)
            raise
        self._owner.released(start)
        self._unsent, self._unsent_bytes = {}, 0
        return manifest

    async def _delete_former(self, former: SnapshotManifest | None, manifest: SnapshotManifest) -> None:
        """Delete objects that the new snapshot doesn't need; raise NadiError if some can't be deleted."""
        names = sorted(former.names) if former is not None else []
        if self._owner.sweeps and (former is None or former.base != manifest.base):
            await self._chunks.check_ours()
            names = list(await self._chunks.listed(snapshots.folder_of(self._container)))
        for name in names:
            if name not in manifest.names:
                await self._chunks.delete(name)

    def _failed(self, error: Exception) -> None:
        self.counts.snapshot_errors += 1
        if self.error != (reason := str(error)):
            message = "container %d: its snapshot could not be stored, so the log is retained: %s"
            log.warning(message, self._container, reason)
        self.error = reason
        self._next_at = self._runtime.monotonic() + self._backoff.take()

    async def finish(self, metadata: ContainerMetadata, sequence: int, log_bytes: int) -> None:
        """Before a clean stop, store a snapshot of the final state, unless that takes long."""
        try:
            async with asyncio.timeout(limits.SNAPSHOT_STOP_S):
                if self._sending is not None:
                    await asyncio.wait([self._sending])
                is_due = self._base_due or sequence != self._copied_sequence
                is_whole = self._base_due or self._deltas_are_enough()
                state, most_bytes = metadata.folder / STATE_FILE, limits.SNAPSHOT_STOP_BYTES
                may_go = is_due and not self.error and self._fenced_by is None
                if may_go and (not is_whole or state.stat().st_size <= most_bytes):
                    await self.take(metadata, sequence, log_bytes)
                    if self._sending is not None:
                        await asyncio.wait([self._sending])
        except TimeoutError:
            log.info("container %d: tier 2 was too slow for a snapshot: the next start stores one", self._container)
        await self.ended(cancel=True)

    async def ended(self, *, cancel: bool = False) -> None:
        if self._sending is not None:
            if cancel:
                self._sending.cancel()
            await asyncio.wait([self._sending])
            self._sending = None
