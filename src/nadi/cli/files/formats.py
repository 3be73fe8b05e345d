"""Files by their formats: opened to be written or read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from nadi.cli.files.batch import Reads, Writes
from nadi.errors import InvalidArgumentError


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
    found = _ENDINGS.get(file.suffix.lower())
    if found is None:
        raise InvalidArgumentError(f"{file} has none of the endings {', '.join(_ENDINGS)}: say which with --format")
    return found


def writing(file: Path, kind: FileFormat, about: dict[str, str]) -> Writes:
    """A file to write; what it is `about` is kept in it where the format has room for that."""
    if kind is FileFormat.JSONL:
        from nadi.cli.files.jsonl import JsonWriter

        return JsonWriter(file)
    if kind is FileFormat.PARQUET:
        from nadi.cli.files.parquet import ParquetWriter

        return ParquetWriter(file, about)
    from nadi.cli.files.avro import AvroWriter

    return AvroWriter(file, about)


def reading(file: Path, kind: FileFormat) -> Reads:
    """A file to read; InvalidArgumentError where it isn't of that format."""
    if kind is FileFormat.JSONL:
        from nadi.cli.files.jsonl import JsonReader

        return JsonReader(file)
    if kind is FileFormat.PARQUET:
        from nadi.cli.files.parquet import ParquetReader

        return ParquetReader(file)
    from nadi.cli.files.avro import AvroReader

    return AvroReader(file)
