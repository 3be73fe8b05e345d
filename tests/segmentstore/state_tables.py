"""What a container's state holds, record by record, so that two of them can be compared."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import lmdb

from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.recovery.localparts import LocalParts
from nadi.segmentstore.state.checked import CRC_BYTES, TABLES, TOTALS_KEY, decode_totals, encode_totals
from nadi.segmentstore.state.extent_rows import singles
from nadi.segmentstore.tier2.chunks import ChunkStore

Records = dict[str, dict[bytes, bytes]]


def records_of(state: Path) -> Records:
    """All records of a state that nobody has open, checksums and totals and all."""
    found: Records = {}
    with lmdb.open(str(state), max_dbs=len(TABLES), readonly=True, lock=False) as env:
        for name in TABLES:
            with env.begin(db=env.open_db(name.encode(), create=False)) as txn:
                found[name] = {bytes(key): bytes(value) for key, value in txn.cursor()}
    return found


def apart(records: Records) -> Records:
    """The same with a row for each extent, so that it doesn't matter which checkpoint wrote which: extents that share a
    row lose its checksum, and the totals of the table go."""
    found = {table: dict(rows) for table, rows in records.items()}
    found["extents"] = dict(singles((key, raw[:-CRC_BYTES]) for key, raw in records["extents"].items()))
    totals = decode_totals(found["state"].pop(TOTALS_KEY)[:-CRC_BYTES])
    del totals["extents"]
    found["state"][TOTALS_KEY] = encode_totals(totals)
    return found


def recovered(folder: Path) -> list[Records]:
    """The states of all containers of a folder after they were recovered and stopped, and nothing else was done."""

    async def recover(number: int) -> None:
        chunks = ChunkStore.in_folder(folder / "tier2")
        container = Container(LocalParts(number, folder / f"container-{number}", chunks), BlockCache())
        await container.start()
        await container.stop()

    states = []
    for number in range(len(list(folder.glob("container-*")))):
        asyncio.run(recover(number))
        states.append(records_of(folder / f"container-{number}" / "state"))
    return states


def copy_of(folder: Path, name: str) -> Path:
    copy = folder.with_name(name)
    shutil.copytree(folder, copy)
    return copy


def lose_states(folder: Path) -> None:
    for container in folder.glob("container-*"):
        shutil.rmtree(container / "state")
