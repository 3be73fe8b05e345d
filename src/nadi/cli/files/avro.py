"""Avro's container files, by fastavro: records with segment_id, offset, key and event.

Needs `pip install "nadi[avro]"`.
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
    raise InvalidArgumentError("Avro needs two more packages: pip install 'nadi[avro]'") from None

_Kind = TypeVar("_Kind", int, str)
_READ_RECORDS, _READ_BYTES = 1000, 4 * MIB
_PACKAGES = {"snappy": "cramjam", "zstandard": "backports.zstd", "lz4": "lz4"}  # of Avro's codecs, with fastavro
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
    """Its blocks are some 16 KB, as fastavro has them, or one event."""

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
    """Any file of records with an `event` of bytes or text will do."""

    def __init__(self, file: Path) -> None:
        self._name = str(file)
        self._file = file.open("rb")
        try:
            self._records = fastavro.reader(self._file)
            schema: Any = self._records.writer_schema
            is_record = isinstance(schema, dict) and schema.get("type") == "record"
            names = [field["name"] for field in schema["fields"]] if is_record else ["something else than records"]
            if "event" not in names:
                raise InvalidArgumentError(f"records of {file} have no `event`, but {', '.join(names[:20])}")
        except InvalidArgumentError:
            self._file.close()
            raise
        except Exception as error:  # whatever it is that isn't Avro
            self._file.close()
            raise InvalidArgumentError(f"{file} can't be read as Avro's records: {error}") from None

    def __iter__(self) -> Iterator[tuple[ExportBatch, int]]:
        records = 0
        while found := self._next():
            batch = ExportBatch([], [], [], [])
            for one in found:
                records += 1
                try:
                    batch.events.append(_bytes(one.get("event")))
                    batch.segment_ids.append(_known(one, "segment_id", int))
                    batch.offsets.append(_known(one, "offset", int))
                    batch.keys.append(_known(one, "key", str))
                except ValueError as error:
                    raise InvalidArgumentError(f"record {records:,} of {self._name} is not an event: {error}") from None
            yield batch, self._file.tell()

    def _next(self) -> list[Any]:
        """Some records; fewer, if they are large."""
        found: list[Any] = []
        begun = self._file.tell()
        try:
            for one in islice(self._records, _READ_RECORDS):
                found.append(one)
                if self._file.tell() - begun > _READ_BYTES:
                    break
            return found
        except Exception as error:  # fastavro raises whatever a damaged byte leads to
            codec = self._records.codec
            if codec in _PACKAGES and "install" in str(error):
                raise InvalidArgumentError(
                    f"{self._name} is compressed by Avro's codec {codec}, which needs one more package: pip install "
                    f"{_PACKAGES[codec]}"
                ) from None
            raise InvalidArgumentError(f"{self._name} can't be read further: {error}") from None

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
