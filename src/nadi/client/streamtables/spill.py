"""Rows that are more than memory may hold, in temporary files: each key's in one of them, in the order of their coming.

The files have no names, so nothing is left of them however the process ends. They are in `tempfile.gettempdir()`, which
the environment's TMPDIR chooses.
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

from nadi.client.streamtables.codes import hashes_of
from nadi.errors import StorageFullError, UnavailableError
from nadi.limits import STREAM_TABLE_PARTS

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
