"""Reads the records of a container's state for comparison."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.recovery.snapshots import StateCopy, restored
from nadi.segmentstore.recovery.storage import LocalStorage
from nadi.segmentstore.state.commit import singles
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.stored import CRC_BYTES, TABLES
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord

Records = dict[str, dict[bytes, bytes]]


def records_of(metadata: ContainerMetadata) -> Records:
    """Return all records of an open state, with checksums."""
    found: Records = {}
    for name in TABLES:
        with metadata._env.begin(db=metadata._tables[name]) as txn:
            found[name] = {bytes(key): bytes(value) for key, value in txn.cursor()}
    return found


def apart(records: Records) -> Records:
    """Return the records with a row for each extent, as checkpoints combine them differently: extents of a shared row
    lose its checksum."""
    found = {table: dict(rows) for table, rows in records.items()}
    found["extents"] = dict(singles((key, raw[:-CRC_BYTES]) for key, raw in records["extents"].items()))
    return found


async def record_of(chunks: ChunkStore, number: int = 0) -> ContainerRecord:
    return (await (await chunks.records()).read(number)).record


def snapshot_records(folder: Path, number: int = 0) -> Records:
    """Return the records of a container's newest snapshot: complete after a clean stop."""

    async def read() -> Records:
        chunks = ChunkStore.in_folder(folder / "tier2")
        with tempfile.TemporaryDirectory() as temporary:
            record = await record_of(chunks, number)
            metadata, damaged = await restored(chunks, number, record.snapshot, Path(temporary))
            assert not damaged
            try:
                return records_of(metadata)
            finally:
                metadata.close()

    return asyncio.run(read())


async def _as_it_was_left(copy: StateCopy, snapshot: object) -> ContainerMetadata:
    return ContainerMetadata(copy._folder, copy._container)


def recovered(folder: Path, *, from_state: bool = False) -> list[Records]:
    """Return the states of all containers of a folder after recovering and stopping them. from_state: start from the
    states left by a killed server, updated from its log, as no server does; the folder is unusable afterwards.
    """

    async def recover(number: int) -> Records:
        chunks = ChunkStore.in_folder(folder / "tier2")
        container = Container(LocalStorage(number, folder / f"container-{number}", chunks), BlockCache())
        await container.start()
        container.checkpoints.start()
        await container.checkpoints.ended()
        records = records_of(container.metadata)
        await container.stop()
        return records

    with mock.patch.object(StateCopy, "take", _as_it_was_left if from_state else StateCopy.take):
        return [asyncio.run(recover(number)) for number in range(len(list(folder.glob("container-*"))))]


def copy_of(folder: Path, name: str) -> Path:
    copy = folder.with_name(name)
    shutil.copytree(folder, copy)
    return copy
