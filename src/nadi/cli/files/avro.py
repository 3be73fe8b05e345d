"""Avro's container files, by fastavro: records with segment_id, offset, key and event.

Needs `pip install "nadi[avro]"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from nadi.cli.files.batch import Batch
from nadi.errors import InvalidArgumentError

try:
    import fastavro
    from fastavro.write import Writer
except ImportError:
    raise InvalidArgumentError("Avro needs two more packages: pip install 'nadi[avro]'") from None

_READ_RECORDS = 1000
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


class AvroWriter:
    """Its blocks are some 16 KB, as fastavro has them, or one event."""

    def __init__(self, file: Path, about: dict[str, str]) -> None:
        self._file = file.open("wb")
        metadata = {f"nadi.{name}": text for name, text in about.items()}
        self._writer = Writer(self._file, fastavro.parse_schema(_SCHEMA), codec="deflate", metadata=metadata)

    def write(self, batch: Batch) -> None:
        rows = zip(batch.segment_ids, batch.offsets, batch.keys, batch.events, strict=True)
        for segment_id, offset, key, event in rows:
            self._writer.write({"segment_id": segment_id, "offset": offset, "key": key, "event": event})

    def close(self) -> None:
        try:
            self._writer.flush()
        finally:
            self._file.close()


class AvroReader:
    """Any file of records with an `event` of bytes or text will do."""

    def __init__(self, file: Path) -> None:
        self._name = str(file)
        self._file = file.open("rb")
        try:
            self._records = fastavro.reader(self._file)
            schema: Any = self._records.writer_schema
            names = [field["name"] for field in schema["fields"]]
            if "event" not in names:
                raise InvalidArgumentError(f"records of {file} have no `event`, but {', '.join(names[:20])}")
        except InvalidArgumentError:
            self._file.close()
            raise
        except Exception as error:  # whatever it is that isn't Avro
            self._file.close()
            raise InvalidArgumentError(f"{file} can't be read as Avro's records: {error}") from None

    def __iter__(self) -> Iterator[tuple[Batch, int]]:
        while found := self._next():
            yield (
                Batch(
                    [_bytes(one.get("event")) for one in found],
                    [_number(one.get("segment_id")) for one in found],
                    [_number(one.get("offset")) for one in found],
                    [one["key"] if isinstance(one.get("key"), str) else None for one in found],
                ),
                self._file.tell(),
            )

    def _next(self) -> list[Any]:
        try:
            return list(islice(self._records, _READ_RECORDS))
        except Exception as error:  # fastavro raises whatever a damaged byte leads to
            raise InvalidArgumentError(f"{self._name} can't be read further: {error}") from None

    def close(self) -> None:
        self._file.close()


def _bytes(event: object) -> bytes:
    if isinstance(event, str):
        return event.encode()
    if not isinstance(event, bytes):
        raise InvalidArgumentError(f"an `event` is bytes or text, not {type(event).__name__}")
    return event


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
