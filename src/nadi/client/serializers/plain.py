"""Serializers without a schema: bytes, text, JSON and msgpack.

JSON and msgpack take a type (a msgspec struct, a dataclass, `list[int]`, ...): each event is decoded as that type and
checked against it. Without a type they return dicts, lists and plain values. Events are just the encoded value, so any
program can write and read them. `Struct` also checks how a type changes.

>>> Json().deserialize(Json().serialize({"meter": "kitchen", "wh": 12}))
{'meter': 'kitchen', 'wh': 12}
>>> Json(list[int]).deserialize(b'["a"]')
Traceback (most recent call last):
nadi.errors.SerializationError: the event is not JSON for list[int]: Expected `int`, got `str` - at `$[0]`

A `SchemaSerializer` also has a definition, which the store keeps. Each event names the schema it was written with, so
that a reader with another version of the schema can still read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, overload, runtime_checkable

import msgspec

from nadi.errors import InvalidArgumentError, SerializationError
from nadi.model.json_events import with_whole_characters

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
        """Return why the definition `reader` can't read values that `writer` writes; empty if it can.

        If the list is empty, every value that can be written with `writer` can be read with `reader`.
        """
        ...


# msgspec's errors for values it can't encode: unsupported, too large, nested too deeply.
ENCODE_ERRORS = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)


class Bytes:
    """Bytes, unchanged; for use where a serializer is required."""

    def serialize(self, value: bytes) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise SerializationError(f"Bytes() takes bytes, not {type(value).__name__}: encode the value first")
        return bytes(value)

    def deserialize(self, data: bytes) -> bytes:
        return data


class Text:
    """str, in UTF-8 unless another encoding is named."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = encoding

    def serialize(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise SerializationError(f"Text() takes str, not {type(value).__name__}: convert the value first")
        try:
            return value.encode(self.encoding)
        except UnicodeError as error:
            raise SerializationError(f"the text can't be written as {self.encoding}: {error}") from error

    def deserialize(self, data: bytes) -> str:
        try:
            return data.decode(self.encoding)
        except UnicodeError as error:
            raise SerializationError(f"the event isn't valid {self.encoding} text: {error}") from error


class _MsgspecSerializer(Generic[T]):
    """Values in one of msgspec's formats. written, read: names of the format, for errors of writing and of reading."""

    def __init__(self, type: Any, format: Any, written: str, read: str) -> None:
        self.type, self._written, self._read = type, written, read
        self._encode: Callable[[T], bytes] = format.Encoder().encode
        try:
            self._decode: Callable[[bytes], T] = format.Decoder(type).decode
        except TypeError as error:
            raise InvalidArgumentError(
                f"{type!r:.60} is not a type that {written} can be decoded as: {error}"
            ) from error

    def serialize(self, value: T) -> bytes:
        try:
            return self._encode(value)
        except ENCODE_ERRORS as error:
            raise SerializationError(f"the value can't be written as {self._written}: {error}") from error

    def deserialize(self, data: bytes) -> T:
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SerializationError(f"the event is not {self._read} for {type_name(self.type)}: {error}") from error


class Json(_MsgspecSerializer[T]):
    """One JSON document per event, decoded as `type` (any by default)."""

    @overload
    def __init__(self: Json[Any]) -> None: ...
    @overload
    def __init__(self, type: type[T]) -> None: ...
    def __init__(self, type: Any = Any) -> None:
        super().__init__(type, msgspec.json, "JSON", "JSON")
        decode = self._decode
        self._decode = lambda data: decode(with_whole_characters(data))


class Msgpack(_MsgspecSerializer[T]):
    """One msgpack value per event, decoded as `type` (any by default); half the size of JSON or less."""

    @overload
    def __init__(self: Msgpack[Any]) -> None: ...
    @overload
    def __init__(self, type: type[T]) -> None: ...
    def __init__(self, type: Any = Any) -> None:
        super().__init__(type, msgspec.msgpack, "msgpack", "valid msgpack")


def type_name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
