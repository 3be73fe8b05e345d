"""Where the data of a migration goes: a store that becomes a cluster's, or that of a new data folder."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from nadi.errors import DataFolderError, InvalidArgumentError, StoreError
from nadi.migration import migration_lock as marks
from nadi.migration.migration_lock import Incoming, Turn
from nadi.migration.sources import MigrationSource, read_all, store_url, url_of
from nadi.object_log import identity
from nadi.object_log.failures import public
from nadi.object_log.opening import open_of_chunks
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
    """Opened as a context. store_url: of the store that is filled. containers: None is what an earlier run began with,
    or the default."""

    _log: identity.LogId | None = None  # of the store
    _is_alone = False  # it is in a data folder
    _default = identity.DEFAULT_CONTAINERS

    def __init__(self, url: str, store_url: str, options: dict[str, str], containers: int | None) -> None:
        identity.check_count(containers)
        self.url, self._store_url, self._options, self._asked = url, store_url, options, containers
        self.containers, self._id = 0, ""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._engine, registry = await open_of_chunks(self._store_url, REAL, **self._options)
            stack.push_async_callback(self._engine.close)
            self._there = await patiently("see whose it is", partial(identity.read_cluster, self._engine), REAL)
            if self._there is None:
                if await marks.begun(self._engine, self.url) is None:
                    await identity.refuse_strangers(self._engine, REAL)
                await prove(self._engine, registry, REAL)
            self._turn = await stack.enter_async_context(Turn(registry, self.url))
            self._records = ContainerRecords(registry, REAL, is_alone=self._is_alone)
            self.chunks = ChunkStore.from_url(self._store_url, **self._options)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def begin(self, source: MigrationSource) -> str:
        """Make sure that nobody opens it until the migration has ended, and return that one's id: a new one, or that of
        an earlier run. StoreError, DataFolderError: something is there already, or another migration is under way."""
        left_by = await source.left_by()
        if self._there is not None:
            if self._there.cluster != left_by:
                is_folders = self._there.log is not None and self._there.log.name == identity.FOLDER_LOG
                whose = "is a data folder's already" if is_folders else "is the store of a cluster already"
                raise StoreError(f"{self.url} {whose}: give another place")
            self.containers, self._id = self._there.containers, left_by
            return left_by
        if left_by and await marks.begun(self._engine, self.url) is None:
            raise StoreError(f"the data of {source.url} was moved elsewhere before: see `nadi migrate --undo`")
        new = Incoming(source.id, source.url, REAL.unique(), self._asked or self._default)
        await self._turn.keep()
        found = await marks.begin(self._engine, self.url, new)
        if found.source != source.id:
            what = f"a migration from {found.url} to {self.url} hasn't ended"
            raise StoreError(f"{what}: end that one, or give another target")
        if self._asked not in (None, found.containers):
            begun = f"this migration was begun with {found.containers:,} containers"
            raise InvalidArgumentError(f"{begun}: leave --containers out, or give as many")
        self.containers, self._id = found.containers, found.migration
        return self._id

    async def put(self, number: int, state: Path, sequence: int, epoch: int) -> None:
        """Store the state of a container, which reflects everything up to that frame; its log begins after it, with
        owners of later epochs."""
        base = await snapshots.put_base(self.chunks, number, sequence, state / STATE_FILE)
        record = first_record(epoch, SnapshotManifest(number, sequence, base, ()))
        await self._turn.keep()
        await patiently("set a record", lambda: self._records.put(number, record), REAL)

    async def finish(self) -> None:
        """Let servers open it: one atomic step, after which all is done; nothing happens if it was done before."""
        await self._turn.keep()
        cluster = await identity.named_cluster(self._engine, self._id, self.containers, REAL, self._log)
        if cluster.cluster != self._id:
            raise StoreError(f"{self.url} was made another's meanwhile: give another place")
        await patiently("delete the mark", lambda: self._engine.delete([identity.MIGRATION]), REAL)


class NewCluster(MigrationTarget):
    """The store of that URL. options: see `open_engines`."""

    def __init__(self, url: str, options: dict[str, str], containers: int | None) -> None:
        check_shared(url)
        super().__init__(url, url, options, containers)


class NewFolder(MigrationTarget):
    """A folder that is empty, or isn't there. tier2: where its store is to be, if not in it."""

    _log = data_dir.LOG
    _default = data_dir.DEFAULT_CONTAINERS

    def __init__(self, folder: Path, containers: int | None, tier2: data_dir.Tier2 | None = None) -> None:
        self.folder, self._said = folder, data_dir.StoreFile(data_dir.FORMAT, "", 0)
        if tier2 is not None:
            data_dir.check_outside(folder, tier2.url)
            self._log = data_dir.LOG_ELSEWHERE
            self._said = replace(self._said, url=data_dir.normal(tier2.url), options=public(tier2.options))
        self._is_alone = tier2 is None
        options = tier2.options if tier2 is not None else {}
        super().__init__(url_of(folder), store_url(folder, self._said), options, containers)

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
        said = data_dir.find(self.folder).store
        if said is not None and said.cluster != await source.left_by():
            raise DataFolderError(f"{self.folder} is a data folder already: give an empty one")
        if said is None:
            await REAL.in_thread(disk.replace_file, self.folder / data_dir.INCOMING, source.url.encode())
        return await super().begin(source)

    async def finish(self) -> None:
        is_new = data_dir.find(self.folder).store is None
        epochs = tuple(one.epoch for one in await read_all(self._records, self.containers)) if self._said.url else ()
        if is_new:
            await REAL.in_thread(data_dir.make_containers, self.folder, self.containers)
        await super().finish()  # before the folder says so: a claim begins with what it finds there
        if is_new:
            said = replace(self._said, cluster=self._id, containers=self.containers, epochs=epochs)
            await REAL.in_thread(said.write, self.folder)
        (self.folder / data_dir.INCOMING).unlink(missing_ok=True)


def check_empty(folder: Path) -> None:
    """Raise DataFolderError if a new data folder can't be there; what a migration leaves in its store is looked at
    there."""
    if not folder.exists() or data_dir.find(folder).store is not None:
        return
    containers = data_dir.container_folders(folder).values()
    new = [path.name for path in containers if data_dir.is_pristine(path)]  # by one that was killed
    others = sorted({path.name for path in folder.iterdir()} - {"lock", data_dir.TIER2, data_dir.INCOMING, *new})
    if others:
        raise DataFolderError(f"{folder} isn't empty, it has {', '.join(others[:3])}: give an empty folder")
