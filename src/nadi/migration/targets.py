"""Target of a migration: the store of a new cluster, or a new data folder."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from nadi.errors import DataFolderError, InvalidArgumentError, StoreError
from nadi.migration import migration_lock as marks
from nadi.migration.migration_lock import Incoming, MigrationLock
from nadi.migration.sources import MigrationSource, read_all, store_url, url_of
from nadi.object_log import identity
from nadi.object_log.failures import public
from nadi.object_log.opening import open_chunk_engines
from nadi.object_log.outcomes import patiently
from nadi.object_log.store_probe import prove
from nadi.object_log.urls import check_shared
from nadi.runtime import REAL
from nadi.segmentstore import data_dir
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.state.metadata import STATE_FILE
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecords, SnapshotManifest, first_record


class MigrationTarget:
    """Target, opened as a context. store_url: the store to fill. containers: None for the number chosen by an earlier
    run, or the default."""

    _log: identity.LogId | None = None  # log that the store's identity names
    _is_alone = False  # True for a store inside a data folder
    _default = identity.DEFAULT_CONTAINERS

    encrypts = False  # whether the target is encrypted; it is, too, if the source is

    def __init__(self, url: str, store_url: str, options: dict[str, str], containers: int | None) -> None:
        identity.check_count(containers)
        self.url, self._store_url, self._options, self._requested = url, store_url, options, containers
        self.containers, self._id = 0, ""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._engine, registry = await open_chunk_engines(self._store_url, REAL, **self._options)
            stack.push_async_callback(self._engine.close)
            self._owner = await patiently("read its owner", partial(identity.read_cluster, self._engine), REAL)
            if self._owner is None:
                if await marks.incoming(self._engine, self.url) is None:
                    await identity.refuse_strangers(self._engine, REAL)
                await prove(self._engine, registry, REAL)
            self._turn = await stack.enter_async_context(MigrationLock(registry, self.url))
            self._records = ContainerRecords(registry, REAL, is_alone=self._is_alone)
            self.chunks = ChunkStore.from_url(self._store_url, **self._options)
            stack.push_async_callback(self.chunks.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def begin(self, source: MigrationSource) -> str:
        """Reserve the target until the migration has ended, and return the migration's id: a new one, or an earlier
        run's. StoreError, DataFolderError: the target isn't empty, or another migration uses it."""
        migrated_by = await source.migrated_by()
        self.encrypts = self.encrypts or source.chunks.sealing.overhead > 0
        if self._owner is not None:
            if self._owner.cluster != migrated_by:
                is_folder = self._owner.log is not None and self._owner.log.name == identity.FOLDER_LOG
                owner = "a data folder" if is_folder else "a cluster"
                raise StoreError(f"{self.url} already belongs to {owner}: choose another target")
            self.containers, self._id = self._owner.containers, migrated_by
            return migrated_by
        if migrated_by and await marks.incoming(self._engine, self.url) is None:
            raise StoreError(f"the data of {source.url} was already moved elsewhere: see `nadi migrate --undo`")
        new = Incoming(source.id, source.url, REAL.unique(), self._requested or self._default)
        await self._turn.keep()
        mark = await marks.begin(self._engine, self.url, new)
        if mark.source != source.id:
            problem = f"a migration from {mark.url} to {self.url} is unfinished"
            raise StoreError(f"{problem}: finish it, or choose another target")
        if self._requested not in (None, mark.containers):
            problem = f"this migration was started with {mark.containers:,} containers"
            raise InvalidArgumentError(f"{problem}: leave out --containers, or use the same number")
        self.containers, self._id = mark.containers, mark.migration
        if self.encrypts:
            await self.chunks.unlock(serves=True, creates=True)
        return self._id

    async def put(self, number: int, state: Path, sequence: int, epoch: int) -> None:
        """Store a container's state, which reflects everything up to frame `sequence`; its log begins after that frame,
        with owners of later epochs."""
        base = await snapshots.put_base(self.chunks, number, sequence, state / STATE_FILE)
        record = first_record(epoch, SnapshotManifest(number, sequence, base, ()))
        await self._turn.keep()
        await patiently("set a record", lambda: self._records.put(number, record), REAL)

    async def finish(self) -> None:
        """Let servers open the target, in one atomic step. Does nothing if it was done before."""
        await self._turn.keep()
        cluster = await identity.named_cluster(
            self._engine, self._id, self.containers, REAL, self._log, encrypted=self.encrypts
        )
        if cluster.cluster != self._id:
            raise StoreError(f"{self.url} was claimed by another owner meanwhile: choose another target")
        await patiently("delete the mark", lambda: self._engine.delete([identity.MIGRATION]), REAL)


class NewCluster(MigrationTarget):
    """New cluster in the store at that URL. options: see `open_engines`."""

    def __init__(self, url: str, options: dict[str, str], containers: int | None) -> None:
        check_shared(url)
        super().__init__(url, url, options, containers)


class NewFolder(MigrationTarget):
    """New data folder, empty or missing. tier2: its store outside the folder, if any."""

    _log = data_dir.LOG
    _default = data_dir.DEFAULT_CONTAINERS

    def __init__(self, folder: Path, containers: int | None, tier2: data_dir.Tier2 | None = None) -> None:
        self.folder, self._store_file = folder, data_dir.StoreFile(data_dir.FORMAT, "", 0)
        if tier2 is not None:
            data_dir.check_outside(folder, tier2.url)
            self._log = data_dir.LOG_ELSEWHERE
            self._store_file = replace(
                self._store_file, url=data_dir.normalized_url(tier2.url), options=public(tier2.options)
            )
        self._is_alone = tier2 is None
        options = tier2.options if tier2 is not None else {}
        super().__init__(url_of(folder), store_url(folder, self._store_file), options, containers)

    async def __aenter__(self) -> Self:
        check_empty(self.folder)
        self._lock = data_dir.FolderLock(self.folder)
        try:
            return await super().__aenter__()
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self._lock.release()

    async def begin(self, source: MigrationSource) -> str:
        store_file = data_dir.find_store(self.folder).store
        if store_file is not None and store_file.cluster != await source.migrated_by():
            raise DataFolderError(f"{self.folder} is already a data folder: choose an empty one")
        if store_file is None:
            await REAL.in_thread(disk.replace_file, self.folder / data_dir.INCOMING, source.url.encode())
        return await super().begin(source)

    async def finish(self) -> None:
        is_new = data_dir.find_store(self.folder).store is None
        records = await read_all(self._records, self.containers) if self._store_file.url else []
        if is_new:
            await REAL.in_thread(data_dir.make_containers, self.folder, self.containers)
        await super().finish()  # before the store file is written: a claim starts from the store's contents
        if is_new:
            epochs = tuple(record.epoch for record in records)
            form = data_dir.ENCRYPTED_FORMAT if self.encrypts else data_dir.FORMAT
            store_file = replace(
                self._store_file, format=form, cluster=self._id, containers=self.containers, epochs=epochs
            )
            await REAL.in_thread(store_file.write, self.folder)
        (self.folder / data_dir.INCOMING).unlink(missing_ok=True)


def check_empty(folder: Path) -> None:
    """Raise DataFolderError unless the folder can become a data folder. Remains of a migration in its store are checked
    there."""
    if not folder.exists() or data_dir.find_store(folder).store is not None:
        return
    containers = data_dir.container_folders(folder).values()
    new = [path.name for path in containers if data_dir.is_pristine(path)]  # created by a killed migration
    others = sorted({path.name for path in folder.iterdir()} - {"lock", data_dir.TIER2, data_dir.INCOMING, *new})
    if others:
        raise DataFolderError(f"{folder} isn't empty, it has {', '.join(others[:3])}: choose an empty folder")
