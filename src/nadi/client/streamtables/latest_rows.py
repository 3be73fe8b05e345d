"""Compute the latest row of each key from rows in the order of their positions.

Up to a sixth of `STREAM_TABLE_MEMORY_BYTES` of latest rows are kept in memory, and as many new rows; the rest is for
copies and key codes while both are merged. If the latest rows exceed that, they and all later rows are partitioned by
key over temporary files, which are then processed one by one in the same way.

A `Spill` partitions rows over temporary files, each key's rows in one file in their order. The files are unnamed, so
they vanish however the process ends. They are in `tempfile.gettempdir()`, which TMPDIR sets; in memory if the process
has a master key.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Self

import numpy as np
import pyarrow as pa

from nadi.client.streamtables.layout import Layout, codes_of, hashes_of
from nadi.encryption.sealing import scratch
from nadi.errors import StorageFullError, UnavailableError
from nadi.limits import MIB, STREAM_TABLE_MEMORY_BYTES, STREAM_TABLE_PARTS

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Spill:
    """STREAM_TABLE_PARTS temporary files. level: how often the rows were partitioned before; each level uses another
    hash."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str], level: int) -> None:
        self._schema, self._keys, self._level = schema, keys, level
        self._files: list[IO[bytes]] = []
        self._writers: list[pa.RecordBatchWriter] = []
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with self._mapped_errors():
            for _ in range(STREAM_TABLE_PARTS):
                file = tempfile.TemporaryFile(prefix="nadi-table-", dir=scratch())  # noqa: SIM115 - closed with the others
                self._files.append(file)
                self._writers.append(pa.ipc.new_stream(file, schema, options=options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files:
            try:
                file.close()
            except OSError:  # its buffer didn't fit on the disk; the data is discarded anyway
                pass

    def write(self, rows: pa.Table) -> None:
        """Add rows; StorageFullError if the disk is full."""
        parts = (hashes_of(rows, self._keys, self._level) % np.uint64(STREAM_TABLE_PARTS)).astype(np.int64)
        order = np.argsort(parts, kind="stable")
        sorted_rows = rows.combine_chunks().take(pa.array(order))
        bounds = np.searchsorted(parts[order], np.arange(STREAM_TABLE_PARTS + 1)).tolist()
        with self._mapped_errors():
            for number, writer in enumerate(self._writers):
                low, high = bounds[number], bounds[number + 1]
                if high > low:
                    writer.write_table(sorted_rows.slice(low, high - low))

    def read(self, number: int) -> Iterator[pa.Table]:
        """Read the rows of one file, which can't be written any more."""
        with self._mapped_errors():
            self._writers[number].close()
            file = self._files[number]
            file.seek(0)
            batches = iter(pa.ipc.open_stream(file))
        while True:
            with self._mapped_errors():
                batch = next(batches, None)
            if batch is None:
                break
            yield pa.Table.from_batches([batch])

    def discard(self, number: int) -> None:
        """Free the disk space of a file."""
        self._files[number].close()

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = tempfile.tempdir or "the folder for temporary files"
            if error.errno in _DISK_FULL:
                raise StorageFullError(
                    f"a table larger than memory needs temporary files, and the disk of {folder} is full: free some "
                    "space, or set TMPDIR to a folder on a larger disk"
                ) from error
            raise UnavailableError(f"temporary files in {folder} can't be used: {error}") from error


MOST_BYTES = STREAM_TABLE_MEMORY_BYTES // 6
GATHERED_BYTES = min(16 * MIB, MOST_BYTES)  # of rows that are merged at once
MOST_LEVELS = 4  # of repeated partitioning: enough for 32**4 times the memory


class LatestByKey:
    """The latest rows of those added. keeps_deleted: treat rows that delete their key like others."""

    def __init__(self, layout: Layout, *, keeps_deleted: bool = False) -> None:
        self._layout, self._keeps_deleted = layout, keeps_deleted
        self._most = MOST_BYTES // 2 if keeps_deleted else MOST_BYTES  # the rest is for computing changes
        self._latest: pa.Table = layout.schema.empty_table()
        self._new: list[pa.Table] = []
        self._new_bytes = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows that don't precede an earlier row of their key."""
        self._new.append(rows)
        self._new_bytes += rows.nbytes
        if self._new_bytes >= max(GATHERED_BYTES, min(self._latest.nbytes, self._most)):
            self._compact()

    @property
    def is_too_large(self) -> bool:
        """Whether the latest rows exceeded the limit when they were last merged."""
        is_larger: bool = self._latest.nbytes > self._most
        return is_larger

    def rows(self) -> pa.Table:
        """Return the latest row of each key in the order of positions; deleted keys only with keeps_deleted."""
        self._compact()
        return self._latest

    def _compact(self) -> None:
        if not self._new:
            return
        rows = pa.concat_tables([self._latest, *self._new]).combine_chunks()
        self._new, self._new_bytes = [], 0
        codes, count = codes_of(rows, self._layout.keys)
        last = np.full(count, -1, np.int64)
        last[codes] = np.arange(len(rows))  # the last assignment to an index wins
        latest = rows.take(pa.array(np.sort(last[last >= 0])))
        if not self._keeps_deleted:
            deleted = self._layout.deletes(latest)
            if deleted.any():
                latest = latest.filter(pa.array(~deleted))
        self._latest = latest


def latest_rows(layout: Layout, rows: Iterator[pa.Table], level: int = 0) -> Iterator[pa.Table]:
    """Yield the latest row of each key that isn't deleted."""
    latest = LatestByKey(layout)
    for batch in rows:
        latest.add(batch)
        if latest.is_too_large and level < MOST_LEVELS:
            break
    else:
        yield latest.rows()
        return
    with Spill(layout.schema, layout.keys, level) as spill:
        spill.write(latest.rows())
        del latest
        for window in windows(rows):
            spill.write(window)
        for number in range(STREAM_TABLE_PARTS):
            yield from latest_rows(layout, spill.read(number), level + 1)
            spill.discard(number)


def windows(rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    pending: list[pa.Table] = []
    size = 0
    for batch in rows:
        pending.append(batch)
        size += batch.nbytes
        if size >= GATHERED_BYTES:
            yield pa.concat_tables(pending)
            pending, size = [], 0
    if pending:
        yield pa.concat_tables(pending)
