"""Protobuf, by its own library: each event as a message of the type that is read, whose fields are then columns.

A field that says whether it is set is null where it isn't, unless it has a default; others have their zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from nadi.client.serializers.protobuf import message_type
from nadi.client.serializers.protobuf_fields import differences
from nadi.spark.values.columns import Decoded, decoded
from nadi.spark.values.types import is_json, of_protobuf


def type_of(definition: bytes) -> pa.DataType:
    """The Arrow type of a stored message type."""
    return of_protobuf(message_type(definition))


def incompatibilities(reader: bytes, writer: bytes) -> list[str]:
    """What keeps the one definition from reading what the other writes."""
    return differences(message_type(reader), message_type(writer))


def decoder(kind: pa.DataType, reader: bytes, writer: bytes) -> Callable[[Sequence[bytes]], Decoded]:
    """What reads events into the reader's definition; field numbers are all it needs."""
    message_class: Any = GetMessageClass(message_type(reader))

    def read(event: bytes) -> Message:
        message: Message = message_class.FromString(event)
        if not message.IsInitialized():
            raise ValueError(f"it has no value for the required {', '.join(message.FindInitializationErrors())}")
        return message

    convert = _convert_message(message_class.DESCRIPTOR, kind)
    if convert is not None:
        whole = convert
        return partial(decoded, read=lambda event: whole(read(event)), kind=kind, fields=_fields)
    return partial(decoded, read=read, kind=kind, fields=_fields)


def _fields(values: Sequence[Any], kind: pa.DataType, number: int) -> list[Any]:
    first = next((value for value in values if value is not None), None)
    if first is None:
        return [None] * len(values)
    field = first.DESCRIPTOR.fields[number]
    name, wanted = field.name, kind.field(number).type
    if field.has_presence and not field.has_default_value:
        found = [None if value is None or not value.HasField(name) else getattr(value, name) for value in values]
    else:
        found = [None if value is None else getattr(value, name) for value in values]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        convert = _converter(field.message_type.fields_by_name["value"], wanted.item_type)
        if convert is None:
            return found
        return [None if value is None else {key: convert(one) for key, one in value.items()} for value in found]
    convert = _converter(field, wanted.value_type if field.is_repeated else wanted)
    if convert is None:
        return found
    if field.is_repeated:
        return [None if value is None else [*map(convert, value)] for value in found]
    return [None if value is None else convert(value) for value in found]


def _converter(field: Any, kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes a single value of the field one of Arrow's, if it isn't one."""
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    return None if field.message_type is None else _convert_message(field.message_type, kind)


def _convert_message(descriptor: Any, kind: pa.DataType) -> Callable[[Any], Any] | None:
    if is_json(kind):
        return lambda message: MessageToDict(message, preserving_proto_field_name=True)
    if pa.types.is_timestamp(kind):
        return lambda message: message.seconds * 1_000_000 + message.nanos // 1_000
    if pa.types.is_duration(kind):
        return lambda message: message.seconds * 1_000_000 + int(message.nanos / 1_000)
    return None if pa.types.is_struct(kind) else lambda message: message.value  # a wrapper of a single value
