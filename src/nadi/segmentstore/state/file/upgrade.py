"""Adding checksums to the values of an earlier version's state: in a new file, which then replaces the old one.

So an interrupted upgrade leaves the state as it was, and memory is needed for a few thousand records only.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import lmdb

from nadi.segmentstore.state.checked import (
    COUNTED,
    STATE_KEY,
    TABLES,
    TOTALS_KEY,
    checksum_of,
    encode_totals,
    sealed,
    seed_of,
)
from nadi.segmentstore.tier1 import disk

_AT_ONCE = 10_000  # records in one transaction
_FILE = "data.mdb"


def upgrade(folder: Path, container: int) -> None:
    """Upgrade the state in `folder`, which nobody has open; durable when this returns. Blocking.

    Raises:
        lmdb.Error, OSError: it could not be done, and the state is as it was; DiskError where there is no room.
    """
    new = folder.with_name(f"{folder.name}.upgraded")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    try:
        _copy(folder, new, container)
        (new / _FILE).rename(folder / _FILE)
        disk.sync_folder(folder)
    finally:
        shutil.rmtree(new)


def _copy(folder: Path, new: Path, container: int) -> None:
    map_bytes = 4 * (folder / _FILE).stat().st_size + (1 << 24)  # address space only
    most = len(TABLES)
    with (
        lmdb.open(os.fsencode(folder), max_dbs=most, map_size=map_bytes, readonly=True, mode=0o600) as source,
        lmdb.open(os.fsencode(new), max_dbs=most, map_size=map_bytes, mode=0o600, sync=False) as target,
    ):
        totals = {name: _copy_table(source, target, name, seed_of(container, name)) for name in COUNTED}
        own = target.open_db(b"state")
        seed = seed_of(container, "state")
        with source.begin(db=source.open_db(b"state", create=False)) as txn:
            state = bytes(txn.get(STATE_KEY) or b"")
        assert state, "a new state is not upgraded"
        with target.begin(write=True, db=own) as txn:
            txn.put(STATE_KEY, sealed(seed, STATE_KEY, state))
            txn.put(TOTALS_KEY, sealed(seed, TOTALS_KEY, encode_totals(totals)))
        target.sync(True)


def _copy_table(source: lmdb.Environment, target: lmdb.Environment, name: str, seed: int) -> tuple[int, int]:
    """The new table's total."""
    count = total = 0
    copied = target.open_db(name.encode())
    with source.begin(db=source.open_db(name.encode(), create=False)) as txn:
        cursor = txn.cursor()
        found = cursor.first()
        while found:
            some = []
            for key, value in cursor.iternext():
                raw = sealed(seed, bytes(key), bytes(value))
                total += checksum_of(raw)
                some.append((bytes(key), raw))
                if len(some) == _AT_ONCE:
                    break
            with target.begin(write=True) as writing:
                writing.cursor(copied).putmulti(some, append=True)
            count += len(some)
            found = len(some) == _AT_ONCE and cursor.next()
    return count, total
