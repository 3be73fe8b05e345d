"""What events are read as, found when a read is planned: a schema of the streams' own, or that of the options.

Each stream may have had several versions. The newest is read, unless one is named; of several streams' newest versions
one that reads all the others. A query that is planned already keeps the version that it was planned with.
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
from nadi.client.values.options import DOCUMENTS, ReadTarget, ValueOptions
from nadi.errors import InvalidArgumentError

_HOMES = {  # imported on first use: they bring libraries that most programs don't use
    "json": "documents",
    "msgpack": "documents",
    "avro": "avro_columns",
    "protobuf": "protobuf_columns",
    "arrow": "arrow",
}


class SchemaSource(Protocol):
    """A client, as far as the schemas of streams are concerned."""

    def schemas(self, scope: str, stream: str) -> SchemaGroup: ...

    async def stream_configuration(self, scope: str, stream: str) -> StreamConfiguration: ...


@dataclass(frozen=True, slots=True)
class _Candidate:
    stream: str
    version: SchemaVersion
    definition: bytes


class Format(Protocol):
    """The columns of a serialization. A definition is a schema as the store has it."""

    def type_of(self, definition: bytes) -> pa.DataType:
        """Return the type of its values, as `serializers.types` says."""
        ...

    def incompatibilities(self, reader: bytes, writer: bytes) -> list[str]:
        """Return what keeps the definition `reader` from reading what `writer` writes."""
        ...

    def decoder(self, kind: pa.DataType, reader: bytes, writer: bytes) -> Callable[[Sequence[bytes]], Decoded]:
        """Return what reads events of the definition `writer` as `reader`'s, whose type is `kind`."""
        ...

    def encoder(self, kind: pa.DataType, definition: bytes) -> Callable[[pa.Array], list[bytes]]:
        """Return what makes an event of each value; it raises one of MISFITS or SerializationError."""
        ...


def format_of(value_format: str) -> Format:
    """Return the format's module; InvalidArgumentError if what it needs isn't installed."""
    try:
        return cast("Format", import_module(f"nadi.client.serializers.{_HOMES[value_format]}"))
    except ImportError as error:
        raise InvalidArgumentError(
            f"the option 'value_format' is {value_format!r}, which needs more where the driver and the tasks run: pip "
            f"install 'nadi[{value_format}]' ({error})"
        ) from error


async def target_of(
    manager: SchemaSource,
    value: ValueOptions,
    scope: str,
    streams: Sequence[str],
    is_wanted: Callable[[ReadTarget], bool] | None = None,
) -> ReadTarget | None:
    """The schema to read with, None if it isn't there. is_wanted: whether it is that of the plan; None for a write.

    InvalidArgumentError if there is no schema, or it is of another format; StreamNotFoundError if there is no stream.
    """
    format_ = format_of(value.format)

    def wanted(kind: pa.DataType, definition: bytes | None = None, schema_id: int | None = None) -> ReadTarget | None:
        plain(kind)
        target = ReadTarget(value, kind, definition, schema_id)
        return target if is_wanted is None or is_wanted(target) else None

    if value.ddl is not None:
        return wanted(of_ddl(value.ddl))
    groups = {stream: manager.schemas(scope, stream) for stream in streams}
    listed = await asyncio.gather(*(group.versions() for group in groups.values()))
    versions = {stream: some for stream, some in zip(streams, listed, strict=True) if some}
    if not versions:
        for stream in streams:
            await manager.stream_configuration(scope, stream)  # which isn't there has no schema either
    newest = []
    known: dict[str, bytes] = {}  # many streams often have one and the same
    for stream, version in _newest(value, scope, streams, versions, is_write=is_wanted is None):
        if version.digest not in known:
            known[version.digest] = await groups[stream].definition(version)
        newest.append(_Candidate(stream, version, known[version.digest]))
    for one in (_reader_of_all(value, format_, newest), *newest):
        its_format = _format(one.version, one.definition)
        if its_format != value.format:
            raise InvalidArgumentError(
                f"the option 'value_format' is {value.format!r}, and version {one.version.id} of the schema of stream "
                f"{scope}/{one.stream} is {its_format}: say {its_format}"
            )
        target = wanted(format_.type_of(one.definition), one.definition, one.version.id)
        if target is not None:
            return target
    for stream, some in versions.items() if value.version is None else ():
        for version in reversed(some[:-1]):  # it was planned, and newer versions have come since
            if version.format == stored_name(value.format):
                definition = await groups[stream].definition(version)
                target = wanted(format_.type_of(definition), definition, version.id)
                if target is not None:
                    return target
    return None


async def stored_format(manager: SchemaSource, scope: str, stream: str) -> str | None:
    """The format of a stream's newest schema, as `value_format` has it; None if it has no schema. StreamNotFoundError
    if there is no stream."""
    group = manager.schemas(scope, stream)
    versions = await group.versions()
    if not versions:
        await manager.stream_configuration(scope, stream)
        return None
    return _format(versions[-1], await group.definition(versions[-1]))


def _format(version: SchemaVersion, definition: bytes) -> str:
    """The format of a version, as `value_format` has it."""
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
            f"the option 'value_format' is {value.format!r}, and scope {scope} has no stream whose schema says what "
            "to read: make the first, or give 'value_schema' with json or msgpack"
        )
    if not versions:
        which = f"stream {scope}/{streams[0]}" if len(streams) == 1 else f"any of {len(streams)} streams"
        instead = ", or give 'value_schema'" if value.format in DOCUMENTS and not is_write else ""
        raise InvalidArgumentError(
            f"the option 'value_format' is {value.format!r}, and the store has no schema for {which}: write with a "
            f"serializer that has one{instead}"
        )
    for stream, some in versions.items():
        number = value.version or len(some)
        if number > len(some):
            raise InvalidArgumentError(
                f"the option 'value_version' is {number}: the newest schema of stream {scope}/{stream} is "
                f"version {len(some)}"
            )
        yield stream, some[number - 1]


def _reader_of_all(value: ValueOptions, format_: Format, newest: Sequence[_Candidate]) -> _Candidate:
    """The first that reads what all the others write."""
    definitions = {one.definition: one for one in newest}
    if len(definitions) == 1 or len({one.version.format for one in newest}) > 1:
        return newest[0]
    problems: list[str] = []
    for one in definitions.values():
        problems = [
            f"what {other.stream} has, {one.stream}'s doesn't read: {problem}"
            for other in definitions.values()
            if other is not one
            for problem in format_.incompatibilities(one.definition, other.definition)
        ]
        if not problems:
            return one
    raise InvalidArgumentError(
        f"the option 'value_format' is {value.format!r}, and none of the streams' schemas reads the others' events: "
        f"read them by themselves ({problems[0]})"
    )
