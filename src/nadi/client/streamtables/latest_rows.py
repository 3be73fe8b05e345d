"""The latest row of each key, of rows that come in the order of their places.

Up to a sixth of `STREAM_TABLE_MEMORY_BYTES` of latest rows are held, and as much of rows that have come since; the rest
is for copies, and numbers of keys, while the former are made of both. If the latest rows alone are more, they and
whatever follows are divided by key over temporary files, which are then treated like that one by one.

A `Spill` has rows in temporary files: each key's in one of them, in the order of their coming. The files have no names,
so nothing is left of them however the process ends. They are in `tempfile.gettempdir()`, which the environment's TMPDIR
chooses.
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
from nadi.errors import StorageFullError, UnavailableError
from nadi.limits import MIB, STREAM_TABLE_MEMORY_BYTES, STREAM_TABLE_PARTS

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Spill:
    """As many files as a level has parts. level: how often the rows were divided before, each time by another hash."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str], level: int) -> None:
        self._schema, self._keys, self._level = schema, keys, level
        self._files: list[IO[bytes]] = []
        self._writers: list[pa.RecordBatchWriter] = []
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with self._told():
            for _ in range(STREAM_TABLE_PARTS):
                file = tempfile.TemporaryFile(prefix="nadi-table-")  # noqa: SIM115 - closed with the others
                self._files.append(file)
                self._writers.append(pa.ipc.new_stream(file, schema, options=options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files:
            try:
                file.close()
            except OSError:  # what it still held has no room: it is thrown away anyhow
                pass

    def write(self, rows: pa.Table) -> None:
        """StorageFullError if there is no room for them."""
        parts = (hashes_of(rows, self._keys, self._level) % np.uint64(STREAM_TABLE_PARTS)).astype(np.int64)
        order = np.argsort(parts, kind="stable")
        sorted_rows = rows.combine_chunks().take(pa.array(order))
        borders = np.searchsorted(parts[order], np.arange(STREAM_TABLE_PARTS + 1)).tolist()
        with self._told():
            for number, writer in enumerate(self._writers):
                low, high = borders[number], borders[number + 1]
                if high > low:
                    writer.write_table(sorted_rows.slice(low, high - low))

    def read(self, number: int) -> Iterator[pa.Table]:
        """The rows of one file; nothing more can be written then."""
        with self._told():
            self._writers[number].close()
            file = self._files[number]
            file.seek(0)
            batches = iter(pa.ipc.open_stream(file))
        while True:
            with self._told():
                batch = next(batches, None)
            if batch is None:
                break
            yield pa.Table.from_batches([batch])

    def forget(self, number: int) -> None:
        """Give back the room of a file that was read."""
        self._files[number].close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = tempfile.tempdir or "the folder for temporary files"
            if error.errno in _NO_ROOM:
                raise StorageFullError(
                    f"a table that is larger than memory needs temporary files, and {folder} has no more room for "
                    "them: free some, or set TMPDIR to a folder on a larger disk"
                ) from error
            raise UnavailableError(f"temporary files in {folder} can't be used: {error}") from error


MOST_BYTES = STREAM_TABLE_MEMORY_BYTES // 6
GATHERED_BYTES = min(16 * MIB, MOST_BYTES)  # of rows before they are looked at together
MOST_LEVELS = 4  # of files that are divided again: enough for 32**4 times what is held


class LatestByKey:
    """The latest rows of what was added. keeps_deleted: rows that delete their keys are rows like others."""

    def __init__(self, layout: Layout, *, keeps_deleted: bool = False) -> None:
        self._layout, self._keeps_deleted = layout, keeps_deleted
        self._most = MOST_BYTES // 2 if keeps_deleted else MOST_BYTES  # changes are made beside them
        self._held: pa.Table = layout.schema.empty_table()
        self._new: list[pa.Table] = []
        self._new_bytes = 0

    def add(self, rows: pa.Table) -> None:
        """None of them has an earlier place than a row of its key that was added before."""
        self._new.append(rows)
        self._new_bytes += rows.nbytes
        if self._new_bytes >= max(GATHERED_BYTES, min(self._held.nbytes, self._most)):
            self._compact()

    @property
    def is_too_large(self) -> bool:
        """Whether the latest rows, when they were last made, were more than may be held."""
        is_more: bool = self._held.nbytes > self._most
        return is_more

    def rows(self) -> pa.Table:
        """One for each key that isn't deleted, in the order of their places; or that is."""
        self._compact()
        return self._held

    def _compact(self) -> None:
        if not self._new:
            return
        rows = pa.concat_tables([self._held, *self._new]).combine_chunks()
        self._new, self._new_bytes = [], 0
        codes, count = codes_of(rows, self._layout.keys)
        last = np.full(count, -1, np.int64)
        last[codes] = np.arange(len(rows))  # of equal indices the last assignment counts
        found = rows.take(pa.array(np.sort(last[last >= 0])))
        if not self._keeps_deleted:
            deleted = self._layout.deletes(found)
            if deleted.any():
                found = found.filter(pa.array(~deleted))
        self._held = found


def latest_rows(layout: Layout, rows: Iterator[pa.Table], level: int = 0) -> Iterator[pa.Table]:
    """The latest row of each key that isn't deleted then."""
    latest = LatestByKey(layout)
    for some in rows:
        latest.add(some)
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
            spill.forget(number)


def windows(rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    size = 0
    for some in rows:
        held.append(some)
        size += some.nbytes
        if size >= GATHERED_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
