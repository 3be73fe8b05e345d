"""Convert values to a stream's events and back: writers call it for each value, readers for each block.

An event of a serializer with a schema starts with six bytes: the magic 9D 01 and the schema's id, a big-endian
u32. No UTF-8 text starts with 9D, so such an event is never mistaken for JSON. An event of a serializer without a
schema consists of the serialized bytes alone.

Serializing never waits: the schema is registered when the writer is created. Reading may fetch schemas, once per
block and before its events are read. An unreadable event fails alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Generic, NoReturn

from nadi.client.segments.stores import SegmentStores
from nadi.client.serializers.plain import SchemaSerializer, Serializer, T
from nadi.client.serializers.registry import SchemaGroup
from nadi.errors import InvalidArgumentError, NadiError, SchemaIncompatibleError, SerializationError, UnknownSchemaError
from nadi.limits import SCHEMA_CACHE_DECODERS

MAGIC = b"\x9d\x01"
_HEADER = struct.Struct(">2sI")
HEADER_BYTES = _HEADER.size


async def encoder(stores: SegmentStores, scope: str, stream: str, serializer: Serializer[T]) -> Callable[[T], bytes]:
    """Return the function that serializes a value into an event; register the serializer's schema if it has one."""
    _check(serializer)
    if not isinstance(serializer, SchemaSerializer):
        return serializer.serialize
    schema_id = await SchemaGroup(stores, scope, stream).register(serializer)
    header, serialize = _HEADER.pack(MAGIC, schema_id), serializer.serialize
    return lambda value: header + serialize(value)


def decoder(stores: SegmentStores, scope: str, stream: str, serializer: Serializer[T]) -> EventDecoder[T]:
    _check(serializer)
    return EventDecoder(SchemaGroup(stores, scope, stream), serializer)


def _check(serializer: object) -> None:
    if isinstance(serializer, type) or not (hasattr(serializer, "serialize") and hasattr(serializer, "deserialize")):
        raise InvalidArgumentError(
            f"{serializer!r} is not a serializer: pass an object with serialize and deserialize, such as Json()"
        )


class EventDecoder(Generic[T]):
    """Decodes events; caches one function per schema, at most SCHEMA_CACHE_DECODERS, the most recently used."""

    def __init__(self, group: SchemaGroup, serializer: Serializer[T]) -> None:
        self._group, self._serializer = group, serializer
        self._known: dict[bytes, Callable[[bytes], T]] = {}  # keyed by header, the least recently used first

    def at_hand(self, events: Iterable[bytes]) -> Callable[[bytes], T] | None:
        """Return the result of `prepare` without waiting, from any thread; None if a schema has to be fetched."""
        if not isinstance(self._serializer, SchemaSerializer):
            return self._serializer.deserialize
        headers = {event[:HEADER_BYTES] for event in events}
        if not headers <= self._known.keys():
            return None
        readers = {header: self._known.pop(header) for header in headers}
        self._known |= readers
        return _by_header(readers)

    async def prepare(self, events: Iterable[bytes]) -> Callable[[bytes], T]:
        """Return a function that reads these events and no others; it raises SerializationError or a subclass."""
        if not isinstance(self._serializer, SchemaSerializer):
            return self._serializer.deserialize
        readers: dict[bytes, Callable[[bytes], T]] = {}
        for header in {event[:HEADER_BYTES] for event in events}:
            reader = self._known.pop(header, None) or await self._reader_of(header, self._serializer)
            readers[header] = self._known[header] = reader
        while len(self._known) > SCHEMA_CACHE_DECODERS:
            del self._known[next(iter(self._known))]
        return _by_header(readers)

    async def _reader_of(self, header: bytes, own: SchemaSerializer[T]) -> Callable[[bytes], T]:
        if len(header) < HEADER_BYTES or header[:2] != MAGIC:
            return _failing(
                lambda: SerializationError(
                    f"the event was written without a schema: read it with a plain serializer, not {type(own).__name__}"
                )
            )
        schema_id = _HEADER.unpack(header)[1]
        try:
            version = await self._group.version(schema_id)
            definition = await self._group.definition(version)
        except UnknownSchemaError:
            return _failing(lambda: UnknownSchemaError(self._group.scope, self._group.stream, schema_id))
        if version.format != own.schema_format:
            problems = [f"the event is {version.format}, the reader expects {own.schema_format}"]
        elif definition == own.definition:
            problems = []
        else:
            problems = own.incompatibilities(own.definition, definition)
        if problems:
            subject = (
                f"schema {schema_id} of stream {self._group.scope}/{self._group.stream} can't be read with this one"
            )
            return _failing(
                lambda: SchemaIncompatibleError(subject, problems, "Read such events with a schema that accepts both")
            )
        return own.decoder(definition)


def _by_header(readers: dict[bytes, Callable[[bytes], T]]) -> Callable[[bytes], T]:
    return lambda event: readers[event[:HEADER_BYTES]](event[HEADER_BYTES:])


def _failing(error: Callable[[], NadiError]) -> Callable[[bytes], NoReturn]:
    def fail(event: bytes) -> NoReturn:
        raise error()  # a new exception for each event: an exception holds its traceback

    return fail
