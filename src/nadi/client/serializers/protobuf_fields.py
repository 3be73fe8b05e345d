"""Whether one Protobuf message type reads everything that another writes without loss: field by field, by number.

Protobuf's own rules for compatibility are wider: an int64 read as an int32 loses its upper half, two fields read
into one oneof lose the first. Here a change is compatible only if it keeps every value. Names don't matter.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor as F

_NAMES = {getattr(F, name): name.removeprefix("TYPE_").lower() for name in dir(F) if name.startswith("TYPE_")}
# writer's type: the other types that read it with the same value
_WIDER = {
    F.TYPE_BOOL: {F.TYPE_INT32, F.TYPE_INT64, F.TYPE_UINT32, F.TYPE_UINT64},
    F.TYPE_INT32: {F.TYPE_INT64},
    F.TYPE_UINT32: {F.TYPE_UINT64, F.TYPE_INT64},
    F.TYPE_SINT32: {F.TYPE_SINT64},
    F.TYPE_ENUM: {F.TYPE_INT32, F.TYPE_INT64},
    F.TYPE_STRING: {F.TYPE_BYTES},
}


def differences(reader: Any, writer: Any) -> list[str]:
    """Return what the reader's message type (a Descriptor) can't take from the writer's, each with its place."""
    return _compare(reader, writer, writer.name, set())


def _compare(reader: Any, writer: Any, path: str, pairs: set[tuple[str, str]]) -> list[str]:
    pair = (reader.full_name, writer.full_name)
    if pair in pairs:
        return []
    pairs.add(pair)
    found: list[str] = []
    for field in reader.fields:
        written = writer.fields_by_number.get(field.number)
        place = f"{path}.{field.name} (number {field.number})"
        if field.is_required and (written is None or not written.is_required):
            found.append(f"{place} is required, and isn't always written")
        if written is not None:
            found += _compare_fields(field, written, place, pairs)
    for oneof in reader.oneofs:
        written_fields = [f for f in (writer.fields_by_number.get(field.number) for field in oneof.fields) if f]
        groups = {f.containing_oneof.name if f.containing_oneof else f.number for f in written_fields}
        if len(groups) > 1:
            found.append(f"{path}.{oneof.name}: fields that could be set together are read into one oneof")
    return found


def _compare_fields(field: Any, written: Any, place: str, pairs: set[tuple[str, str]]) -> list[str]:
    if field.is_repeated != written.is_repeated or _is_map(field) != _is_map(written):
        return [f"{place} is {_shape(field)} where {_shape(written)} was written"]
    if field.type != written.type and field.type not in _WIDER.get(written.type, ()):
        return [f"{place} is {_NAMES[field.type]} where {_NAMES[written.type]} was written"]
    if field.message_type is not None:
        return _compare(field.message_type, written.message_type, place, pairs)
    if field.enum_type is not None and field.enum_type.is_closed:
        lost = sorted({*written.enum_type.values_by_number} - {*field.enum_type.values_by_number})
        if lost or not written.enum_type.is_closed:
            return [
                f"{place}: the closed enum {field.enum_type.name} lacks what may be written {lost or '(any number)'}"
            ]
    return []


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _shape(field: Any) -> str:
    if _is_map(field):
        return "a map"
    return "repeated" if field.is_repeated else "single"
