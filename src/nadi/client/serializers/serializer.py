"""What a serializer is: the seam between a program's values and the bytes of an event.

A plain serializer (bytes, text, JSON) needs nothing else. One with a schema has a definition that is kept in
the store beside the stream; each event then names the schema it was written with, so that a reader whose own
schema is another version still reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


class Serializer(Protocol[T]):
    """Turns values into the bytes of events and back; both raise SerializationError."""

    def serialize(self, value: T) -> bytes:
        """Return the value as an event's bytes."""
        ...

    def deserialize(self, data: bytes) -> T:
        """Return the value that an equal serializer's `serialize` wrote as `data`."""
        ...


@runtime_checkable
class SchemaSerializer(Serializer[T], Protocol[T]):
    """A serializer whose schema is kept in the store.

    schema_format: "avro", "protobuf", "json-schema" or "arrow". definition: the schema as it is stored; equal
    schemas have equal definitions.
    """

    @property
    def schema_format(self) -> str: ...

    @property
    def definition(self) -> bytes: ...

    def decoder(self, written: bytes) -> Callable[[bytes], T]:
        """Return a function that reads events written with the definition `written` as values of this schema."""
        ...

    def incompatibilities(self, reader: bytes, writer: bytes) -> list[str]:
        """Return what keeps the definition `reader` from reading what `writer` writes; empty if nothing does.

        If the list is empty, every value that can be written with `writer` can be read with `reader`.
        """
        ...
