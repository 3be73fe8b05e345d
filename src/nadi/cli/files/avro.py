"""Avro container files of records with segment_id, offset, key and event, read and written by fastavro.

Requires `pip install "nadi[avro]"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from nadi.cli.files import ExportBatch
from nadi.errors import InvalidArgumentError
from nadi.limits import MIB

try:
    import fastavro
    from fastavro.write import Writer as FileWriter
except ImportError:
    raise InvalidArgumentError("Avro requires two more packages: pip install 'nadi[avro]'") from None

_Kind = TypeVar("_Kind", int, str)
_READ_RECORDS, _READ_BYTES = 1000, 4 * MIB
_PACKAGES = {"snappy": "cramjam", "zstandard": "backports.zstd", "lz4": "lz4"}  # that fastavro needs for Avro's codecs
_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "namespace": "nadi",
    "fields": [
        {"name": "segment_id", "type": ["null", "long"], "default": None},
        {"name": "offset", "type": ["null", "long"], "default": None},
        {"name": "key", "type": ["null", "string"], "default": None},
        {"name": "event", "type": "bytes"},
    ],
}


class Writer:
    """Writes blocks of about 16 KB, fastavro's default, or of one event."""

    def __init__(self, file: Path, about: dict[str, str]) -> None:
        self._file = file.open("wb")
        metadata = {f"nadi.{name}": text for name, text in about.items()}
        self._writer = FileWriter(self._file, fastavro.parse_schema(_SCHEMA), codec="deflate", metadata=metadata)

    def write(self, batch: ExportBatch) -> None:
        rows = zip(batch.segment_ids, batch.offsets, batch.keys, batch.events, strict=True)
        for segment_id, offset, key, event in rows:
            self._writer.write({"segment_id": segment_id, "offset": offset, "key": key, "event": event})

    def close(self) -> None:
        try:
            self._writer.flush()
        finally:
            self._file.close()


class Reader:
    """Reads any file of records with a field `event` of bytes or string."""

    def __init__(self, file: Path) -> None:
        self._name = str(file)
        self._file = file.open("rb")
        try:
            self._records = fastavro.reader(self._file)
            schema: Any = self._records.writer_schema
            is_record = isinstance(schema, dict) and schema.get("type") == "record"
            names = [field["name"] for field in schema["fields"]] if is_record else ["no records"]
            if "event" not in names:
                raise InvalidArgumentError(
                    f"records of {file} lack the field `event`: their fields are {', '.join(names[:20])}"
                )
        except InvalidArgumentError:
            self._file.close()
            raise
        except Exception as error:  # fastavro raises various errors for other formats
            self._file.close()
            raise InvalidArgumentError(f"can't read {file} as Avro: {error}") from None

    def __iter__(self) -> Iterator[tuple[ExportBatch, int]]:
        count = 0
        while records := self._next():
            batch = ExportBatch([], [], [], [])
            for record in records:
                count += 1
                try:
                    batch.events.append(_bytes(record.get("event")))
                    batch.segment_ids.append(_known(record, "segment_id", int))
                    batch.offsets.append(_known(record, "offset", int))
                    batch.keys.append(_known(record, "key", str))
                except ValueError as error:
                    raise InvalidArgumentError(f"record {count:,} of {self._name} is not an event: {error}") from None
            yield batch, self._file.tell()

    def _next(self) -> list[Any]:
        """Read the next records; fewer if they are large."""
        records: list[Any] = []
        start = self._file.tell()
        try:
            for record in islice(self._records, _READ_RECORDS):
                records.append(record)
                if self._file.tell() - start > _READ_BYTES:
                    break
            return records
        except Exception as error:  # fastavro raises various errors for damaged data
            codec = self._records.codec
            if codec in _PACKAGES and "install" in str(error):
                raise InvalidArgumentError(
                    f"{self._name} uses Avro's codec {codec}, which requires a package: pip install {_PACKAGES[codec]}"
                ) from None
            raise InvalidArgumentError(f"can't read the rest of {self._name}: {error}") from None

    def close(self) -> None:
        self._file.close()


def _bytes(event: object) -> bytes:
    if isinstance(event, str):
        return event.encode()
    if not isinstance(event, bytes):
        raise ValueError(f"its `event` is {type(event).__name__}, not bytes or text")
    return event


def _known(record: dict[str, Any], name: str, kind: type[_Kind]) -> _Kind | None:
    value = record.get(name)
    if value is not None and type(value) is not kind:
        raise ValueError(f"its `{name}` is {type(value).__name__}, not {kind.__name__}")
    return value
