"""Convert Protobuf events to columns and back: each event is parsed as a message of the type that is read.

A field with presence is null where it isn't set, unless it has a default; other fields have their zero values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
from google.protobuf.json_format import MessageToDict, ParseDict, SerializeToJsonError
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from nadi.client.serializers.columns import Decoded, decoded
from nadi.client.serializers.protobuf import Protobuf, message_reader, message_type
from nadi.client.serializers.types import JSON, is_json, struct_of

incompatibilities = Protobuf.incompatibilities
_ARROW = {  # by the number of the type in descriptor.proto
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.uint64(),
    5: pa.int32(),
    6: pa.uint64(),
    7: pa.uint32(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.uint32(),
    14: pa.string(),  # an enum's names
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
_KNOWN_MESSAGES = {
    "google.protobuf.Timestamp": pa.timestamp("us", "UTC"),
    "google.protobuf.Duration": pa.duration("us"),
    "google.protobuf.BoolValue": pa.bool_(),
    "google.protobuf.Int32Value": pa.int32(),
    "google.protobuf.Int64Value": pa.int64(),
    "google.protobuf.UInt32Value": pa.uint32(),
    "google.protobuf.UInt64Value": pa.uint64(),
    "google.protobuf.FloatValue": pa.float32(),
    "google.protobuf.DoubleValue": pa.float64(),
    "google.protobuf.StringValue": pa.string(),
    "google.protobuf.BytesValue": pa.binary(),
    "google.protobuf.Struct": JSON,
    "google.protobuf.Value": JSON,
    "google.protobuf.ListValue": JSON,
}


# --- types --------------------------------------------------------------------------------------------


def type_of(definition: bytes) -> pa.DataType:
    return arrow_type(message_type(definition))


def arrow_type(descriptor: Any, within: tuple[str, ...] = ()) -> pa.DataType:
    """Return the type of a message, its fields in the order of the descriptor."""
    name = descriptor.full_name
    if name in _KNOWN_MESSAGES:
        return _KNOWN_MESSAGES[name]
    if name in within:
        return JSON
    inner = (*within, name)
    return struct_of(
        pa.field(field.name, _field_type(field, inner), not field.is_required) for field in descriptor.fields
    )


def _field_type(field: Any, within: tuple[str, ...]) -> pa.DataType:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = (message.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_single_type(key, within), _single_type(value, within))
    single = _single_type(field, within)
    return pa.list_(pa.field("element", single)) if field.is_repeated else single


def _single_type(field: Any, within: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        return arrow_type(field.message_type, within)
    return _ARROW[field.type]


# --- columns ------------------------------------------------------------------------------------------


def decoder(kind: pa.DataType, reader: bytes, writer: bytes) -> Callable[[Sequence[bytes]], Decoded]:
    message_class: Any = GetMessageClass(message_type(reader))
    read = message_reader(message_class)
    convert = _convert_message(message_class.DESCRIPTOR, kind)
    if convert is not None:
        convert_message = convert
        return partial(decoded, read=lambda event: convert_message(read(event)), kind=kind, fields=_fields)
    return partial(decoded, read=read, kind=kind, fields=_fields)


def _fields(values: Sequence[Any], kind: pa.DataType, number: int) -> list[Any]:
    first = next((value for value in values if value is not None), None)
    if first is None:
        return [None] * len(values)
    field = first.DESCRIPTOR.fields[number]
    name, field_kind, get = field.name, kind.field(number).type, attrgetter(field.name)
    if field.has_presence and not field.has_default_value:
        column = [None if value is None or not value.HasField(name) else get(value) for value in values]
    elif any(value is None for value in values):
        column = [None if value is None else get(value) for value in values]
    else:
        column = list(map(get, values))
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        convert = _converter(field.message_type.fields_by_name["value"], field_kind.item_type)
        if convert is None:
            return column
        return [None if value is None else {key: convert(item) for key, item in value.items()} for value in column]
    convert = _converter(field, field_kind.value_type if field.is_repeated else field_kind)
    if convert is None:
        return column
    if field.is_repeated:
        return [None if value is None else [*map(convert, value)] for value in column]
    return [None if value is None else convert(value) for value in column]


def _converter(field: Any, kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts a single value of the field for Arrow; None if it needs no conversion."""
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    return None if field.message_type is None else _convert_message(field.message_type, kind)


def _convert_message(descriptor: Any, kind: pa.DataType) -> Callable[[Any], Any] | None:
    if is_json(kind):
        return _document
    if pa.types.is_timestamp(kind):
        return lambda message: message.seconds * 1_000_000 + message.nanos // 1_000
    if pa.types.is_duration(kind):
        return lambda message: message.seconds * 1_000_000 + int(message.nanos / 1_000)
    return None if pa.types.is_struct(kind) else lambda message: message.value  # a wrapper message


def _document(message: Message) -> dict[str, Any]:
    try:
        document: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    except SerializeToJsonError as error:  # infinity in a Value
        raise ValueError(str(error)) from error
    return document


def encoder(kind: pa.DataType, definition: bytes) -> Callable[[pa.Array], list[bytes]]:
    message_class: Any = GetMessageClass(message_type(definition))

    def encode(value: Any) -> bytes:
        message = message_class()
        _fill(message, value, kind)
        data: bytes = message.SerializeToString()
        return data

    return lambda values: [encode(value) for value in values.to_pylist()]


def _fill(message: Any, value: Any, kind: pa.DataType) -> None:
    if is_json(kind):
        ParseDict(msgspec.json.decode(value), message)
    elif pa.types.is_timestamp(kind):
        message.FromDatetime(value)
    elif pa.types.is_duration(kind):
        message.FromTimedelta(value)
    elif not pa.types.is_struct(kind):
        message.value = _scalar(message.DESCRIPTOR.fields_by_name["value"], value)
    else:
        for number, field in enumerate(message.DESCRIPTOR.fields):
            item = value.get(field.name)
            if item is not None:
                _set(message, field, item, kind.field(number).type)
            elif field.is_required:
                raise ValueError(f"the field {field.name!r} is null but required")


def _set(message: Any, field: Any, value: Any, kind: pa.DataType) -> None:
    name = field.name
    if pa.types.is_map(kind):
        container, item = getattr(message, name), field.message_type.fields_by_name["value"]
        for key, element in value:
            if item.message_type is None:
                container[key] = _scalar(item, element)
            else:
                _fill(container[key], element, kind.item_type)
    elif field.is_repeated:
        container = getattr(message, name)
        for element in value:
            if field.message_type is None:
                container.append(_scalar(field, element))
            else:
                _fill(container.add(), element, kind.value_type)
    elif field.message_type is None:
        setattr(message, name, _scalar(field, value))
    else:
        container = getattr(message, name)
        container.SetInParent()
        _fill(container, value, kind)


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_name.get(value)
        return int(value) if known is None else known.number  # a number without a name was read as text
    return int(value) if isinstance(value, Decimal) else value  # unsigned 64-bit integers
