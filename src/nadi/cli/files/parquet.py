"""Parquet files with columns segment_id, offset, key and event, in row groups of some megabytes, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nadi.cli.files import ExportBatch
from nadi.errors import InvalidArgumentError
from nadi.limits import MIB

_GROUP_BYTES, _GROUP_ROWS = 32 * MIB, 262_144
_READ_ROWS, _READ_BYTES = 8192, 4 * MIB
_COLUMNS = {"segment_id": pa.int64(), "offset": pa.int64(), "key": pa.string(), "event": pa.binary()}


class Writer:
    """Buffers one row group and writes it when it is full."""

    def __init__(self, file: Path, about: dict[str, str]) -> None:
        metadata = {f"nadi.{name}": text for name, text in about.items()}
        self._schema = pa.schema(list(_COLUMNS.items()), metadata)
        self._writer = pq.ParquetWriter(
            file, self._schema, compression="zstd", use_dictionary=["segment_id", "key"], write_page_checksum=True
        )
        self._batches: list[Any] = []
        self._buffered_rows = self._buffered_bytes = 0

    def write(self, batch: ExportBatch) -> None:
        size = batch.size_bytes
        if self._buffered_rows + len(batch) > _GROUP_ROWS or self._buffered_bytes + size > _GROUP_BYTES:
            self._write_group()
        columns = [batch.segment_ids, batch.offsets, batch.keys, batch.events]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, _COLUMNS.values(), strict=True)]
        self._batches.append(pa.record_batch(arrays, schema=self._schema))
        self._buffered_rows += len(batch)
        self._buffered_bytes += size

    def _write_group(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, self._schema))
            self._batches, self._buffered_rows, self._buffered_bytes = [], 0, 0

    def close(self) -> None:
        self._write_group()
        self._writer.close()


class Reader:
    """Reads any file with a column `event` of bytes or string."""

    def __init__(self, file: Path) -> None:
        self._size = file.stat().st_size
        try:
            self._file = pq.ParquetFile(file, buffer_size=MIB, pre_buffer=False, page_checksum_verification=True)
        except pa.ArrowException as error:
            raise InvalidArgumentError(f"can't read {file} as Parquet: {error}") from None
        schema = self._file.schema_arrow
        if "event" not in schema.names:
            self._file.close()
            raise InvalidArgumentError(
                f"{file} lacks the column `event`: its columns are {', '.join(schema.names[:20])}"
            )
        self._names = [name for name in _COLUMNS if name in schema.names]
        if repeated := [name for name in self._names if schema.names.count(name) > 1]:
            self._file.close()
            raise InvalidArgumentError(f"{file} has several columns named `{repeated[0]}`: rename all but one")
        for name in self._names:
            if not _fits(schema.field(name).type, name):
                self._file.close()
                kind = schema.field(name).type
                raise InvalidArgumentError(f"column `{name}` of {file} is of type {kind}, not {_COLUMNS[name]}")

    def __iter__(self) -> Iterator[tuple[ExportBatch, int]]:
        rows, total = 0, max(1, self._file.metadata.num_rows)
        try:
            for batch in self._read_batches():
                rows += batch.num_rows
                events = batch.column("event")
                if events.null_count:
                    at = rows - batch.num_rows + events.is_null().index(True).as_py() + 1
                    raise InvalidArgumentError(f"the `event` of row {at:,} is null: remove the row")
                unknown = [None] * batch.num_rows
                others: list[Any] = [
                    batch.column(name).to_pylist() if name in self._names else unknown
                    for name in ("segment_id", "offset", "key")
                ]
                values = [event.encode() if isinstance(event, str) else event for event in events.to_pylist()]
                yield ExportBatch(values, *others), self._size * rows // total
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"the file contains a string that isn't valid UTF-8: {error}") from None
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgumentError(f"can't read the rest of the file: {error}") from None

    def _read_batches(self) -> Iterator[Any]:
        """Read some megabytes at a time, as row groups of other programs have any size."""
        metadata = self._file.metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            rows = group.num_rows * _READ_BYTES // max(1, group.total_byte_size)
            at_once = min(_READ_ROWS, max(1, rows))
            yield from self._file.iter_batches(at_once, row_groups=[number], columns=self._names)

    def close(self) -> None:
        self._file.close()


def _fits(kind: Any, name: str) -> bool:
    if name != "event" and pa.types.is_null(kind):
        return True
    if name in ("segment_id", "offset"):
        return bool(pa.types.is_integer(kind))
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))
    is_text = is_text or isinstance(kind, pa.JsonType)
    if name == "key":
        return bool(is_text)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(is_text or is_bytes or pa.types.is_fixed_size_binary(kind))
