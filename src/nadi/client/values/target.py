"""Resolve the schema that events are read with when a read is planned: the streams' own, or one of the options.

A stream may have several versions: the newest is read unless one is named; of several streams' newest versions, one
that reads all the others. A query that is already planned keeps the version of its plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

import pyarrow as pa

from nadi.client.control.policy import StreamConfiguration
from nadi.client.serializers.arrow_columns import plain
from nadi.client.serializers.columns import Decoded
from nadi.client.serializers.registry import SchemaGroup, SchemaVersion
from nadi.client.serializers.structs import parsed
from nadi.client.serializers.types import of_ddl
from nadi.client.values.options import DOCUMENTS, KAFKA, ReadTarget, ValueOptions
from nadi.errors import InvalidArgumentError

_HOMES = {  # imported on first use: they load libraries that most programs don't use
    "json": "documents",
    "msgpack": "documents",
    "avro": "avro_columns",
    "protobuf": "protobuf_columns",
    "arrow": "arrow",
    "kafka": "kafka",
}


class SchemaSource(Protocol):
    """The part of a client that looks up schemas of streams."""

    def schemas(self, scope: str, stream: str) -> SchemaGroup: ...

    async def stream_configuration(self, scope: str, stream: str) -> StreamConfiguration: ...


@dataclass(frozen=True, slots=True)
class _Candidate:
    stream: str
    version: SchemaVersion
    definition: bytes


class Format(Protocol):
    """The columns of a serialization format. A definition is a schema as stored."""

    def type_of(self, definition: bytes) -> pa.DataType:
        """Return the type of its values, as described in `serializers.types`."""
        ...

    def incompatibilities(self, reader: bytes, writer: bytes) -> list[str]:
        """Return why the definition `reader` can't read values that `writer` writes; empty if it can."""
        ...

    def decoder(self, kind: pa.DataType, reader: bytes, writer: bytes) -> Callable[[Sequence[bytes]], Decoded]:
        """Return a function that reads events of the definition `writer` as `reader`'s, whose type is `kind`."""
        ...

    def encoder(self, kind: pa.DataType, definition: bytes) -> Callable[[pa.Array], list[bytes]]:
        """Return a function that encodes values; it raises one of MISFITS or SerializationError."""
        ...


def format_of(value_format: str) -> Format:
    """Return the format's module; InvalidArgumentError if a package that it needs isn't installed."""
    try:
        return cast("Format", import_module(f"nadi.client.serializers.{_HOMES[value_format]}"))
    except ImportError as error:
        raise InvalidArgumentError(
            f"the option 'value_format' is {value_format!r}, which needs more packages on the driver and the "
            "executors: "
            f"pip install 'nadi[{value_format}]' ({error})"
        ) from error


async def target_of(
    manager: SchemaSource,
    value: ValueOptions,
    scope: str,
    streams: Sequence[str],
    is_wanted: Callable[[ReadTarget], bool] | None = None,
) -> ReadTarget | None:
    """Return the schema to read or write with; None if `is_wanted` accepts none.

    is_wanted: tests for the schema of a plan; None for a write. InvalidArgumentError if the schema is missing, or has
    another format; StreamNotFoundError if a stream doesn't exist.
    """
    format_ = format_of(value.format)

    def accepted(kind: pa.DataType, definition: bytes | None = None, schema_id: int | None = None) -> ReadTarget | None:
        plain(kind)
        target = ReadTarget(value, kind, definition, schema_id)
        return target if is_wanted is None or is_wanted(target) else None

    if value.ddl is not None:
        return accepted(of_ddl(value.ddl))
    if value.format == KAFKA:
        return accepted(format_.type_of(b""))
    groups = {stream: manager.schemas(scope, stream) for stream in streams}
    listed = await asyncio.gather(*(group.versions() for group in groups.values()))
    versions = {stream: known for stream, known in zip(streams, listed, strict=True) if known}
    if not versions:
        for stream in streams:
            await manager.stream_configuration(scope, stream)  # StreamNotFoundError explains a missing schema
    newest = []
    definitions: dict[str, bytes] = {}  # streams often share a schema
    for stream, version in _newest(value, scope, streams, versions, is_write=is_wanted is None):
        if version.digest not in definitions:
            definitions[version.digest] = await groups[stream].definition(version)
        newest.append(_Candidate(stream, version, definitions[version.digest]))
    for candidate in (_reader_of_all(value, format_, newest), *newest):
        its_format = _format(candidate.version, candidate.definition)
        if its_format != value.format:
            raise InvalidArgumentError(
                f"the option 'value_format' is {value.format!r}, but version {candidate.version.id} of the schema of "
                f"stream {scope}/{candidate.stream} is {its_format}: set it to {its_format}"
            )
        target = accepted(format_.type_of(candidate.definition), candidate.definition, candidate.version.id)
        if target is not None:
            return target
    for stream, known in versions.items() if value.version is None else ():
        for version in reversed(known[:-1]):  # planned before newer versions were registered
            if version.format == stored_name(value.format):
                definition = await groups[stream].definition(version)
                target = accepted(format_.type_of(definition), definition, version.id)
                if target is not None:
                    return target
    return None


async def stored_format(manager: SchemaSource, scope: str, stream: str) -> str | None:
    """Return the format of a stream's newest schema as in `value_format`; None without a schema. StreamNotFoundError if
    the stream doesn't exist."""
    group = manager.schemas(scope, stream)
    versions = await group.versions()
    if not versions:
        await manager.stream_configuration(scope, stream)
        return None
    return _format(versions[-1], await group.definition(versions[-1]))


def _format(version: SchemaVersion, definition: bytes) -> str:
    """Return the format of a version as in `value_format`."""
    return parsed(definition).encoding if version.format == "json-schema" else version.format


def stored_name(value_format: str) -> str:
    return "json-schema" if value_format in DOCUMENTS else value_format


def _newest(
    value: ValueOptions,
    scope: str,
    streams: Sequence[str],
    versions: Mapping[str, Sequence[SchemaVersion]],
    *,
    is_write: bool,
) -> Iterator[tuple[str, SchemaVersion]]:
    if not streams:
        raise InvalidArgumentError(
            f"the option 'value_format' is {value.format!r}, but scope {scope} lacks a stream to take the schema from: "
            "create a stream, or give 'value_schema' with json or msgpack"
        )
    if not versions:
        which = f"stream {scope}/{streams[0]}" if len(streams) == 1 else f"any of {len(streams)} streams"
        instead = ", or give 'value_schema'" if value.format in DOCUMENTS and not is_write else ""
        raise InvalidArgumentError(
            f"the option 'value_format' is {value.format!r}, but the store lacks a schema for {which}: write with a "
            f"serializer that has one{instead}"
        )
    for stream, known in versions.items():
        number = value.version or len(known)
        if number > len(known):
            raise InvalidArgumentError(
                f"the option 'value_version' is {number}, but the newest schema of stream {scope}/{stream} is "
                f"version {len(known)}"
            )
        yield stream, known[number - 1]


def _reader_of_all(value: ValueOptions, format_: Format, newest: Sequence[_Candidate]) -> _Candidate:
    """Return the first candidate that reads the values of all others."""
    definitions = {reader.definition: reader for reader in newest}
    if len(definitions) == 1 or len({reader.version.format for reader in newest}) > 1:
        return newest[0]
    problems: list[str] = []
    for reader in definitions.values():
        problems = [
            f"the schema of {reader.stream} can't read events of {other.stream}: {problem}"
            for other in definitions.values()
            if other is not reader
            for problem in format_.incompatibilities(reader.definition, other.definition)
        ]
        if not problems:
            return reader
    raise InvalidArgumentError(
        f"the option 'value_format' is {value.format!r}, but none of the streams' schemas reads the events of all: "
        f"read the streams separately ({problems[0]})"
    )
