"""Protobuf: types reported as compatible keep values, with random message types, changes and values."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from nadi.client.serializers import Protobuf
from nadi.errors import InvalidArgumentError, SerializationError

F = FieldDescriptorProto
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
UINT32, UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    F.TYPE_INT32: INT32,
    F.TYPE_INT64: INT64,
    F.TYPE_UINT32: UINT32,
    F.TYPE_UINT64: UINT64,
    F.TYPE_SINT32: INT32,
    F.TYPE_SINT64: INT64,
    F.TYPE_FIXED32: UINT32,
    F.TYPE_SFIXED64: INT64,
    F.TYPE_BOOL: st.booleans(),
    F.TYPE_DOUBLE: st.floats(allow_nan=False),
    F.TYPE_STRING: st.text(max_size=5),
    F.TYPE_BYTES: st.binary(max_size=5),
    F.TYPE_ENUM: st.sampled_from([0, 1, 2]),
}
ONE, MANY, MUST = F.LABEL_OPTIONAL, F.LABEL_REPEATED, F.LABEL_REQUIRED
Spec = dict[int, tuple[int, int, bool]]  # number: type, label, in the oneof

SPECS: st.SearchStrategy[Spec] = st.dictionaries(
    st.integers(1, 4),
    st.tuples(
        st.sampled_from([*SCALARS, F.TYPE_MESSAGE]),
        st.sampled_from([F.LABEL_OPTIONAL, F.LABEL_OPTIONAL, F.LABEL_REPEATED, F.LABEL_REQUIRED]),
        st.booleans(),
    ),
)


def message_class(spec: Spec, syntax: str, symbols: int = 3, inner: int = F.TYPE_INT32) -> Any:
    file = FileDescriptorProto(name="test.proto", package="t", syntax=syntax)
    kinds = file.enum_type.add(name="Kind")
    for number in range(symbols):
        kinds.value.add(name=f"K{number}", number=number)
    nested = file.message_type.add(name="Inner")
    nested.field.add(name="x", number=1, type=inner, label=F.LABEL_OPTIONAL)
    message = file.message_type.add(name="M")
    if any(in_oneof and label == F.LABEL_OPTIONAL for _, label, in_oneof in spec.values()):
        message.oneof_decl.add(name="one")
    for number, (kind, label, in_oneof) in spec.items():
        if syntax == "proto3" and label == F.LABEL_REQUIRED:
            label = F.LABEL_OPTIONAL
            in_oneof = False
        field = message.field.add(name=f"f{number}", number=number, type=kind, label=label)
        if kind in (F.TYPE_MESSAGE, F.TYPE_ENUM):
            field.type_name = ".t.Inner" if kind == F.TYPE_MESSAGE else ".t.Kind"
        if in_oneof and label == F.LABEL_OPTIONAL:
            field.oneof_index = 0
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("t.M"))


def fill(data: st.DataObject, message: Any, symbols: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and not data.draw(st.booleans()):
            continue
        if field.type == F.TYPE_MESSAGE:
            target = getattr(message, field.name)
            (target.add() if field.is_repeated else target).x = data.draw(st.integers(0, 2**31 - 1))
            continue
        strategy = SCALARS[field.type] if field.type != F.TYPE_ENUM else st.integers(0, symbols - 1)
        if field.is_repeated:
            getattr(message, field.name).extend(data.draw(st.lists(strategy, max_size=3)))
        else:
            setattr(message, field.name, data.draw(strategy))


def plain(value: Any) -> Any:
    """Normalize a value: a string equals its bytes, a bool its number, and an inner message its number."""
    if hasattr(value, "DESCRIPTOR"):
        return value.x
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | int | float):
        return value
    return [plain(item) for item in value]


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])  # a shared machine may stop for long
@given(st.data(), st.sampled_from(["proto2", "proto3"]), st.sampled_from(["proto2", "proto3"]))
def test_compatible_type_reads_equal_values(data: st.DataObject, syntax: str, own_syntax: str) -> None:
    old_spec, changes = data.draw(SPECS), data.draw(SPECS)
    kept = {number for number in old_spec if data.draw(st.integers(0, 9)) < 8}
    new_spec = {**changes, **{number: old_spec[number] for number in kept}}
    symbols, own_symbols = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    inner, own_inner = data.draw(st.sampled_from([(5, 5), (5, 3), (3, 5), (13, 3)]))
    old_class = message_class(old_spec, syntax, symbols, inner)
    new_class = message_class(new_spec, own_syntax, own_symbols, own_inner)
    writer, reader = Protobuf(old_class), Protobuf(new_class)
    if reader.incompatibilities(reader.definition, writer.definition):
        event("incompatible")
        return
    event("compatible")
    value = old_class()
    fill(data, value, symbols)
    read = reader.decoder(writer.definition)(writer.serialize(value))
    written = {field.number: given for field, given in value.ListFields()}
    found = {field.number: given for field, given in read.ListFields()}
    for field in new_class.DESCRIPTOR.fields:
        if field.number in written and field.number in old_spec:
            # a field without presence that holds its default isn't listed
            default = [] if field.is_repeated else field.default_value if field.message_type is None else None
            assert plain(found.get(field.number, default)) == plain(written[field.number])


EDGES: dict[int, list[Any]] = {
    F.TYPE_INT32: [0, 1, -1, 2**31 - 1, -(2**31)],
    F.TYPE_SINT32: [0, 1, -1, 2**31 - 1, -(2**31)],
    F.TYPE_INT64: [0, 1, -1, 2**63 - 1, -(2**63)],
    F.TYPE_SINT64: [0, 1, -1, 2**63 - 1, -(2**63)],
    F.TYPE_SFIXED64: [0, 1, -1, 2**63 - 1, -(2**63)],
    F.TYPE_UINT32: [0, 1, 2**32 - 1],
    F.TYPE_FIXED32: [0, 1, 2**32 - 1],
    F.TYPE_UINT64: [0, 1, 2**64 - 1],
    F.TYPE_BOOL: [False, True],
    F.TYPE_DOUBLE: [0.0, -0.5],
    F.TYPE_STRING: ["", "ä"],
    F.TYPE_BYTES: [b"", b"\xff"],
    F.TYPE_ENUM: [0, 1, 2],
}


@pytest.mark.parametrize("label", [F.LABEL_OPTIONAL, F.LABEL_REPEATED])
def test_compatible_types_keep_edge_values(label: int) -> None:
    compatible = 0
    for old, values in EDGES.items():
        for syntax, own_syntax, own_symbols in itertools.product(("proto2", "proto3"), ("proto2", "proto3"), (2, 3)):
            old_class = message_class({1: (old, label, False)}, syntax)
            for new in EDGES:
                if new != F.TYPE_ENUM and own_symbols == 2:
                    continue
                new_class = message_class({1: (new, label, False)}, own_syntax, own_symbols)
                writer, reader = Protobuf(old_class), Protobuf(new_class)
                if reader.incompatibilities(reader.definition, writer.definition):
                    assert old != new or (new == F.TYPE_ENUM and own_syntax == "proto2")
                    continue
                compatible += 1
                for value in [values] if label == F.LABEL_REPEATED else values:
                    read = reader.deserialize(writer.serialize(old_class(f1=value)))
                    assert plain(read.f1) == plain(value), (old, new, syntax, own_syntax)
    assert compatible > 4 * len(EDGES)


def test_all_ways_to_move_fields_into_a_oneof() -> None:
    ways = list(itertools.product([False, True], repeat=3))
    allowed = 0
    for old, new in itertools.product(ways, ways):
        old_class, new_class = (
            message_class({i: (F.TYPE_INT32, ONE, in_oneof) for i, in_oneof in enumerate(way, 1)}, "proto2")
            for way in (old, new)
        )
        writer, reader = Protobuf(old_class), Protobuf(new_class)
        if reader.incompatibilities(reader.definition, writer.definition):
            continue
        allowed += 1
        for numbers in itertools.product([None, 7], repeat=3):
            given = old_class(**{f"f{i}": number for i, number in enumerate(numbers, 1)})
            read = reader.deserialize(writer.serialize(given))
            assert [field.number for field, _ in read.ListFields()] == [field.number for field, _ in given.ListFields()]
    assert allowed > len(ways)


def problems(reader: Any, writer: Any) -> str:
    of_reader, of_writer = Protobuf(reader), Protobuf(writer)
    return "; ".join(of_reader.incompatibilities(of_reader.definition, of_writer.definition))


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ({1: (F.TYPE_INT32, ONE, False)}, {1: (F.TYPE_INT64, ONE, False)}),
        ({1: (F.TYPE_SINT32, ONE, False)}, {1: (F.TYPE_INT32, ONE, False)}),
        ({1: (F.TYPE_STRING, ONE, False)}, {1: (F.TYPE_BYTES, ONE, False)}),
        ({1: (F.TYPE_INT32, MANY, False)}, {1: (F.TYPE_INT32, ONE, False)}),
        ({1: (F.TYPE_INT32, MUST, False)}, {}),
        (
            {1: (F.TYPE_INT32, ONE, True), 2: (F.TYPE_INT32, ONE, True)},
            {1: (F.TYPE_INT32, ONE, False), 2: (F.TYPE_INT32, ONE, False)},
        ),
    ],
)
def test_incompatible_type_is_reported(reader: Spec, writer: Spec) -> None:
    assert problems(message_class(reader, "proto2"), message_class(writer, "proto2"))


def test_closed_enum_without_written_value_is_incompatible() -> None:
    spec: Spec = {1: (F.TYPE_ENUM, ONE, False)}
    assert "[2]" in problems(message_class(spec, "proto2", 2), message_class(spec, "proto2"))
    assert not problems(message_class(spec, "proto3", 2), message_class(spec, "proto2"))


def test_real_message_types() -> None:
    assert not problems(timestamp_pb2.Timestamp, duration_pb2.Duration)  # the same numbers and types
    assert not problems(struct_pb2.Struct, struct_pb2.Struct)  # recursive, with a map and a oneof
    assert "google.protobuf.FieldDescriptorProto" in Protobuf(F).definition.decode("latin-1")
    assert not problems(DescriptorProto, DescriptorProto)
    stamp = timestamp_pb2.Timestamp(seconds=5)
    assert Protobuf(timestamp_pb2.Timestamp).deserialize(Protobuf(timestamp_pb2.Timestamp).serialize(stamp)) == stamp


def test_invalid_value_event_or_class_is_rejected() -> None:
    serializer = Protobuf(timestamp_pb2.Timestamp)
    with pytest.raises(SerializationError):
        serializer.serialize(duration_pb2.Duration())
    with pytest.raises(SerializationError):
        serializer.deserialize(b"\xff")
    required = message_class({1: (F.TYPE_INT32, MUST, False)}, "proto2")
    with pytest.raises(SerializationError, match="f1"):
        Protobuf(required).serialize(required())
    with pytest.raises(SerializationError, match="f1"):
        Protobuf(required).deserialize(b"")
    with pytest.raises(InvalidArgumentError):
        Protobuf(int)
