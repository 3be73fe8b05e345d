"""Keeps a container's snapshots in tier 2 close to its state, so that the log need not be kept for long.

The container calls `take` while no commit of its state runs; what is to be sent is set aside there, and sent by a task
while everything continues. While tier 2 takes nothing, the log is kept, and the next try comes after a growing pause.

A snapshot releases the log only while it is known to be intact. One that was just stored is, and one from which the
state was restored; the scrub reads it every week (`verify`). If any of its objects is damaged, which are stored twice,
the log is kept, and a new full one is made at once.
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
_SMALL_BYTES = 64 * limits.KIB  # of deltas, for which no new base is made


class SnapshotPace(NamedTuple):
    """How often one is made: after `interval_s`, or once the log has grown by `log_bytes`, at a checkpoint. A full one
    instead of a delta: after so many deltas, or once they have more than `deltas_part` of its size."""

    interval_s: float = limits.SNAPSHOT_INTERVAL_S
    log_bytes: int = limits.SNAPSHOT_LOG_BYTES
    deltas: int = limits.SNAPSHOT_DELTAS
    deltas_part: float = 0.25


PACE = SnapshotPace()


class RecordOwner(Protocol):
    """Whoever has a container, whose record names the snapshot that counts: see `parts.ContainerParts`. After a
    FencedError nothing here is called. sweeps: whether what the newest snapshot doesn't name is deleted: not where a
    later owner's may be among it."""

    sweeps: bool

    async def claim_record(self) -> tuple[ContainerRecords, int]: ...
    def start_after(self, sequence: int) -> ChainStart: ...
    def released(self, start: ChainStart) -> None: ...
    def is_no_room(self, error: Exception) -> bool: ...
    def release_room(self) -> bool: ...


class Snapshotter:
    """The snapshots of one container, whose state is in `folder`; their objects are in `chunks`. pace: `PACE` by
    default."""

    def __init__(
        self,
        container: int,
        folder: Path,
        chunks: ChunkStore,
        owner: RecordOwner,
        runtime: Runtime = REAL,
        pace: SnapshotPace | None = None,
    ) -> None:
        self.counts = StoreCounters()  # of its store, once it is open
        self.current_at = runtime.monotonic()  # when one was stored, or there was nothing to store, last
        self.error: str = ""  # why the last try to store, or to read, one failed
        self.damage: str = ""  # what is wrong with the newest one, until there is a new one,
        self.renewed: str = ""  # and what was wrong with the last that was replaced for it
        self.on_stored: Callable[[], None] = lambda: None
        self.on_damage: Callable[[DamagedStateError], None] = lambda error: None
        self.on_fenced: Callable[[FencedError], None] = lambda error: None
        self._container = container
        self._copy = folder / _COPY_FILE
        self._folder = folder
        self._chunks = chunks
        self._runtime = runtime
        self._owner = owner
        self._pace = pace if pace is not None else PACE
        self._fenced_by: FencedError | None = None  # another server's snapshots: nothing of them is changed any more
        self._manifest: SnapshotManifest | None = None
        self._is_known = False  # to be whole
        self._whole_due = True  # a base, because what changed since the last snapshot is not known
        self._taken_sequence = 0  # up to here all changes are in a snapshot, on their way there, or in `_unsent`
        self._unsent: Changes = {}  # since the newest snapshot, unless a base is due
        self._unsent_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._backoff = Backoff(first_s=self._pace.interval_s, longest_s=limits.SNAPSHOT_RETRY_MAX_S)
        self._next_at = 0.0
        self._log_bytes = 0

    @property
    def sequence(self) -> int:
        """The frame up to which tier 2 has an intact snapshot, and the log may be released; 0: it has none."""
        return self._manifest.sequence if self._manifest is not None and self._is_known else 0

    async def open(self, manifest: SnapshotManifest | None, damaged: Sequence[str] = ()) -> None:
        """Continue from the snapshot from which the state was restored, if there was one. damaged: what is wrong with
        objects of it, whose copies were used."""
        await self.ended()
        self._copy.unlink(missing_ok=True)
        self._manifest, self._is_known = manifest, True
        self._taken_sequence = manifest.sequence if manifest is not None else 0
        self._unsent, self._unsent_bytes, self._whole_due = {}, 0, manifest is None
        self._next_at = self._runtime.monotonic() + (self._pace.interval_s if manifest is not None else 0.0)
        if damaged or self.damage:
            self._give_up("; ".join(damaged) or self.damage)

    async def verify(self, pause: Callable[[int], Awaitable[None]]) -> str:
        """Read the stored snapshot; return what is wrong with it, or "". `pause` gets each object's size. A damaged
        snapshot is given up, and so is one whose record is damaged. FencedError: it is another server's; `on_fenced`
        was called. UnavailableError: tier 2 can't be read."""
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
            is_sending = self._sending is not None and not self._sending.done()  # which may be setting them just now
            if (what := await records.unequal(self._container)) and not is_sending:
                raise SnapshotError(what, name_of(self._container))
        except FencedError as error:
            self._fenced(error)
            raise
        except SnapshotError as error:
            newest = self._manifest
            if newest is manifest or error.name in {name_of(self._container), *newest.names}:
                self._give_up(str(error))
            # else it was replaced meanwhile, by what was stored just now
        return self.damage

    def _fenced(self, error: FencedError) -> None:
        self._fenced_by = error
        self.on_fenced(error)

    def _give_up(self, what: str) -> None:
        log.error(
            "container %d: the snapshot of its state is damaged; a new one is made, and the log kept until then: %s",
            self._container,
            what,
        )
        self.damage = what
        self._is_known = False
        self._forget_unsent()
        self._next_at = self._runtime.monotonic()

    def due(self, metadata: ContainerMetadata, sequence: int, log_bytes: int, *, hurry: bool = False) -> bool:
        """Whether `take` would find something to do. log_bytes: written to the log so far; hurry: it must shrink."""
        if self._fenced_by is not None or (self._sending is not None and not self._sending.done()):
            return False
        if sequence == self._taken_sequence and not self._whole_due and not self._unsent:
            self.current_at = self._runtime.monotonic()
            return False
        now = self._runtime.monotonic()
        has_grown = hurry or log_bytes - self._log_bytes >= self._pace.log_bytes
        return now >= self._next_at or (self._backoff.is_fresh and has_grown)

    def hasten(self) -> None:
        """Make the next snapshot, of all that has changed, come with the next checkpoint."""
        self._next_at = self._runtime.monotonic()

    async def take(self, metadata: ContainerMetadata, sequence: int, log_bytes: int) -> None:
        """Set aside what the next snapshot adds to the last, and have it sent."""
        self._next_at = self._runtime.monotonic() + self._pace.interval_s
        self._log_bytes = log_bytes
        changes, size_bytes = metadata.take_changes()
        self._taken_sequence = sequence
        if (
            changes is None
            or self._unsent_bytes + size_bytes > limits.STATE_CHANGES_MAX_BYTES
            or self._deltas_are_enough()
        ):
            self._forget_unsent()
        if self._whole_due or changes is None:
            try:
                await self._runtime.in_thread(metadata.copy, self._copy)
            except (NadiError, OSError, lmdb.Error) as error:
                self._copy.unlink(missing_ok=True)
                self._failed(error)
                return
            send = partial(self._send_whole, sequence)
        else:
            merge(self._unsent, changes)
            self._unsent_bytes += size_bytes
            send = partial(self._send_delta, sequence)
        self._sending = asyncio.create_task(self._store(send), name=f"snapshot-{self._container}")

    def _forget_unsent(self) -> None:
        """What changed since the newest snapshot is not kept: the next one is a base."""
        self._unsent, self._unsent_bytes, self._whole_due = {}, 0, True

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
            try:
                manifest = await send()
            except (NadiError, OSError) as error:
                if not self._owner.is_no_room(error) or not self._owner.release_room():
                    raise
                manifest = await send()  # with the room kept aside: only a snapshot makes room in the log
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
            log.warning("container %d: a new snapshot has taken the damaged one's place", self._container)
            self.renewed, self.damage = self.damage, ""
        self.on_stored()
        try:
            await self._delete_former(former, manifest)
        except NadiError as error:  # they are garbage: the next whole one finds them
            log.info("container %d: a former snapshot stays for now: %s", self._container, error)

    async def _send_whole(self, sequence: int) -> SnapshotManifest:
        rest = partial(self._runtime.rest, limits.CHECKPOINT_REST_S)
        try:
            await self._runtime.in_thread(verify, self._copy, self._container, rest)
        except DamagedStateError as error:  # a snapshot of it would replace a good one
            self.on_damage(error)
            raise
        base = await snapshots.put_base(self._chunks, self._container, sequence, self._copy)
        manifest = await self._let_count(SnapshotManifest(self._container, sequence, base, ()))
        self._whole_due, self._is_known = False, True
        return manifest

    async def _send_delta(self, sequence: int) -> SnapshotManifest:
        former = self._manifest
        assert former is not None, "a delta follows a base"
        stored = await self._runtime.in_thread(snapshots.pack_changes, self._unsent)
        name = snapshots.delta_name(self._container, sequence, self._runtime.unique())
        deltas = (*former.deltas, await snapshots.put(self._chunks, name, stored))
        return await self._let_count(replace(former, sequence=sequence, deltas=deltas))

    async def _let_count(self, manifest: SnapshotManifest) -> SnapshotManifest:
        """Have the record name it. If that fails, what only this one names is deleted, where it surely doesn't count;
        elsewhere nobody names it."""
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
        """Delete what nobody needs any more, now that this one counts; raise NadiError if some of it stays."""
        names = sorted(former.names) if former is not None else []
        if self._owner.sweeps and (former is None or former.base != manifest.base):
            await self._chunks.check_ours()
            names = list(await self._chunks.listed(snapshots.folder_of(self._container)))
        for name in names:
            if name not in manifest.names:
                await self._chunks.delete(name)

    def _failed(self, error: Exception) -> None:
        self.counts.snapshot_errors += 1
        if self.error != (said := str(error)):
            what = "container %d: its snapshot could not be stored, and the log is kept: %s"
            log.warning(what, self._container, said)
        self.error = said
        self._next_at = self._runtime.monotonic() + self._backoff.take()

    async def finish(self, metadata: ContainerMetadata, sequence: int, log_bytes: int) -> None:
        """Before a clean stop: bring the snapshot up to the end of the state, unless that takes long."""
        try:
            async with asyncio.timeout(limits.SNAPSHOT_STOP_S):
                if self._sending is not None:
                    await asyncio.wait([self._sending])
                is_due = self._whole_due or sequence != self._taken_sequence
                is_whole = self._whole_due or self._deltas_are_enough()
                state, most_bytes = self._folder / "state" / STATE_FILE, limits.SNAPSHOT_STOP_BYTES
                may_go = is_due and not self.error and self._fenced_by is None
                if may_go and (not is_whole or state.stat().st_size <= most_bytes):
                    await self.take(metadata, sequence, log_bytes)
                    if self._sending is not None:
                        await asyncio.wait([self._sending])
        except TimeoutError:
            log.info("container %d: the next start makes a snapshot; for this one tier 2 was too slow", self._container)
        await self.ended(cancel=True)

    async def ended(self, *, cancel: bool = False) -> None:
        if self._sending is not None:
            if cancel:
                self._sending.cancel()
            await asyncio.wait([self._sending])
            self._sending = None
