"""Files by their formats, opened to be written or read: all have events with their positions and keys, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from nadi.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Batch:
    """Events in order, by columns. segment_ids, keys: None where they aren't known."""

    events: list[bytes]
    segment_ids: list[int | None]
    offsets: list[int | None]
    keys: list[str | None]

    def __len__(self) -> int:
        return len(self.events)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.events))


class Writes(Protocol):
    """A file that is being written; closed, it is whole."""

    def write(self, batch: Batch) -> None: ...
    def close(self) -> None: ...


class Reads(Protocol):
    """A file that is read: batches, and how many bytes of the file they and all before them take, about."""

    def __iter__(self) -> Iterator[tuple[Batch, int]]: ...
    def close(self) -> None: ...


class FileFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    AVRO = "avro"


_ENDINGS = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".parquet": FileFormat.PARQUET,
    ".avro": FileFormat.AVRO,
}


def format_of(file: Path, given: FileFormat | None) -> FileFormat:
    """The one given, or the one that the file's ending names."""
    if given is not None:
        return given
    kind = _ENDINGS.get(file.suffix.lower())
    if kind is None:
        raise InvalidArgumentError(f"{file} has none of the endings {', '.join(_ENDINGS)}: say which with --format")
    return kind
