"""Writers and readers with serializers, against a server, blocking and asynchronous."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import pyarrow as pa
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from nadi.client import StreamManager, aio
from nadi.client.serializers import Arrow, Avro, Json, Msgpack, Protobuf, SchemaSerializer, Serializer, Struct, Text
from nadi.client.serializers.codec import EventDecoder
from nadi.client.serializers.values import ValueReader
from nadi.errors import (
    InvalidArgumentError,
    RequestTimeoutError,
    SchemaIncompatibleError,
    SerializationError,
    UnavailableError,
    UnknownSchemaError,
)
from nadi.testing import RestartableServer, fill_stream, read_stream


class Old(msgspec.Struct):
    meter: str


class New(msgspec.Struct):
    meter: str
    wh: int = 0


AVRO = Avro({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
ARROW = Arrow(pa.schema([("a", pa.int64())]))


@pytest.mark.parametrize(
    ("serializer", "values"),
    [
        (Text(), ["a", "ä", ""]),
        (Json(), [1, {"a": None}, []]),
        (Msgpack(Old), [Old("a"), Old("b")]),
        (Struct(Old), [Old("a"), Old("b")]),
        (Struct(Old, "msgpack"), [Old("a"), Old("b")]),
        (AVRO, [{"a": 1}, {"a": 2}]),
        (Protobuf(Timestamp), [Timestamp(seconds=1), Timestamp()]),
        (ARROW, [pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [3]})]),
    ],
)
def test_values_round_trip(
    nadi_manager: StreamManager, nadi_scope: str, serializer: Serializer[object], values: list[object]
) -> None:
    fill_stream(nadi_manager, nadi_scope, "s", values, "k", serializer=serializer)
    assert read_stream(nadi_manager, nadi_scope, "s", serializer=serializer) == values
    has_header = [event[:6] == b"\x9d\x01\x00\x00\x00\x01" for event in read_stream(nadi_manager, nadi_scope, "s")]
    assert all(has_header) if isinstance(serializer, SchemaSerializer) else not any(has_header)


def test_each_version_reads_the_other(nadi_manager: StreamManager, nadi_scope: str) -> None:
    fill_stream(nadi_manager, nadi_scope, "s", [Old("a")], "k", serializer=Struct(Old))
    fill_stream(nadi_manager, nadi_scope, "s", [New("b", 2)], "k", serializer=Struct(New, "msgpack"))
    fill_stream(nadi_manager, nadi_scope, "s", [Old("c")], "k", serializer=Struct(Old))
    assert read_stream(nadi_manager, nadi_scope, "s", serializer=Struct(New)) == [New("a"), New("b", 2), New("c")]
    assert read_stream(nadi_manager, nadi_scope, "s", serializer=Struct(Old)) == [Old("a"), Old("b"), Old("c")]


def test_undecodable_event_does_not_affect_others(nadi_manager: StreamManager, nadi_scope: str) -> None:
    serializer = Struct(Old)
    fill_stream(nadi_manager, nadi_scope, "s", [Old("a")], "k", serializer=serializer)
    header = b"\x9d\x01\x00\x00\x00"
    bad = [b"", b"{}", header + b"\x01{", header + b"\x09{}", header + b"\x00{}", header]
    fill_stream(nadi_manager, nadi_scope, "s", bad, "k")
    end = fill_stream(nadi_manager, nadi_scope, "s", [Old("b")], "k", serializer=serializer)
    events = list(nadi_manager.read_events(nadi_scope, "s", serializer=serializer, end=end))
    assert [events[0].value, events[-1].value] == [Old("a"), Old("b")]
    assert events[0].value is events[0].value
    assert [event.data for event in events[1:-1]] == bad
    errors: list[type[Exception]] = []
    for event in events[1:-1]:
        with pytest.raises((SerializationError, UnknownSchemaError)) as caught:
            event.value  # noqa: B018
        errors.append(caught.type)
        if caught.type is SerializationError:
            assert caught.value.__notes__ == [f"this is the event at offset {event.offset:,} of segment 0"]
    assert errors == [SerializationError] * 3 + [UnknownSchemaError] * 2 + [SerializationError]


def test_incompatible_ends_raise_error(nadi_manager: StreamManager, nadi_scope: str) -> None:
    fill_stream(nadi_manager, nadi_scope, "s", [Old("a")], "k", serializer=Struct(Old))
    other = Struct(msgspec.defstruct("Other", [("meter", int)]))
    with pytest.raises(SchemaIncompatibleError, match=r"\$\.meter"):
        nadi_manager.create_writer(nadi_scope, "s", serializer=other)
    with pytest.raises(SchemaIncompatibleError, match=r"schema 1 .*\$\.meter"):
        read_stream(nadi_manager, nadi_scope, "s", serializer=other)
    with pytest.raises(SchemaIncompatibleError, match=r"json-schema.* avro"):
        read_stream(nadi_manager, nadi_scope, "s", serializer=AVRO)
    with pytest.raises(InvalidArgumentError):
        nadi_manager.create_writer(nadi_scope, "s", serializer=Text)  # type: ignore[call-overload]


def test_a_batch_is_written_whole_or_not_at_all(nadi_manager: StreamManager, nadi_scope: str) -> None:
    nadi_manager.create_stream(nadi_scope, "s")
    with nadi_manager.create_writer(nadi_scope, "s", serializer=Text()) as writer:
        with pytest.raises(SerializationError):
            writer.write_batch(["a", 1], "k")  # type: ignore[list-item]
        writer.write_event("b", "k").result(60)
    assert read_stream(nadi_manager, nadi_scope, "s") == [b"b"]


def test_transactions_of_values(nadi_manager: StreamManager, nadi_scope: str) -> None:
    nadi_manager.create_stream(nadi_scope, "s")
    with nadi_manager.create_transaction_writer(nadi_scope, "s", serializer=Struct(Old)) as writer:
        txn = writer.begin_txn()
        txn.write_event(Old("a"), "k")
        txn.flush()
        txn.commit(wait=True)
        assert writer.get_txn(txn.txn_id).status() == "COMMITTED"
        with pytest.raises(SerializationError), writer.begin_txn() as failed:
            failed.write_batch([New("b")], "k")  # type: ignore[list-item]
        assert failed.status() in ("ABORTING", "ABORTED")
    assert read_stream(nadi_manager, nadi_scope, "s", serializer=Struct(Old)) == [Old("a")]


def test_a_reader_of_values_goes_on_from_its_position(nadi_manager: StreamManager, nadi_scope: str) -> None:
    fill_stream(nadi_manager, nadi_scope, "s", ["a"], "k", serializer=Text())
    with nadi_manager.create_reader(nadi_scope, "s", serializer=Text()) as reader:
        first = reader.next_events(60)
        assert first is not None
        assert [event.value for event in first] == ["a"]
        position = reader.position()
        with pytest.raises(RequestTimeoutError):
            reader.next_events(0.05)
    end = fill_stream(nadi_manager, nadi_scope, "s", ["b"], "k", serializer=Text())
    with nadi_manager.create_reader(nadi_scope, "s", serializer=Text(), start=position, end=end) as reader:
        assert [event.value for events in reader for event in events] == ["b"]


class Unsteady(EventDecoder[str]):
    """A schema source whose first request fails."""

    def __init__(self) -> None:
        self.asked = 0

    def at_hand(self, events: Iterable[bytes]) -> None:
        return None

    async def prepare(self, events: Iterable[bytes]) -> Callable[[bytes], str]:
        self.asked += 1
        if self.asked == 1:
            raise UnavailableError("the store is away")
        return bytes.decode


async def test_the_asyncio_face(nadi_server: RestartableServer, nadi_scope: str) -> None:
    async with aio.StreamManager(nadi_server.controller_uri) as manager:
        await manager.create_stream(nadi_scope, "s")
        writer = await manager.create_writer(nadi_scope, "s", serializer=Struct(Old))
        await (await writer.write(Old("a"), "k"))
        writer.write_batch([Old("b")], "k")
        await writer.close()
        txns = await manager.create_transaction_writer(nadi_scope, "s", serializer=Struct(Old))
        async with await txns.begin_txn() as txn:
            txn.write_event(Old("c"), "k")
        assert await (await txns.get_txn(txn.txn_id)).status() in ("COMMITTING", "COMMITTED")
        reader = await manager.create_reader(nadi_scope, "s", serializer=Struct(Old))
        found: list[Old] = []
        async for events in reader:
            found += [event.value for event in events]
            if len(found) == 3:
                break
        assert found == [Old("a"), Old("b"), Old("c")]
        end = reader.position()
        reader.close()
        again = manager.read_events(nadi_scope, "s", serializer=Struct(Old), end=end)
        assert [event.value async for event in again] == found
        assert [version.id for version in await manager.schemas(nadi_scope, "s").versions()] == [1]


async def test_unprepared_values_are_returned_later(nadi_server: RestartableServer, nadi_scope: str) -> None:
    async with aio.StreamManager(nadi_server.controller_uri) as manager:
        await manager.create_stream(nadi_scope, "s")
        writer = await manager.create_writer(nadi_scope, "s")
        await writer.write_event(b"a")
        start = (await manager.stream_info(nadi_scope, "s")).head
        reader = ValueReader(await manager.create_reader(nadi_scope, "s"), Unsteady())
        with pytest.raises(UnavailableError):
            await reader.next_events(60)
        assert reader.position() == start
        events = await reader.next_events(60)
        assert events is not None
        assert [event.value for event in events] == ["a"]
        assert reader.position() == (await manager.stream_info(nadi_scope, "s")).tail


def test_unprepared_values_are_returned_later_by_the_blocking_client(
    nadi_server: RestartableServer, nadi_scope: str
) -> None:
    with StreamManager(nadi_server.controller_uri) as manager:
        manager.create_stream(nadi_scope, "s")
        start = manager.stream_info(nadi_scope, "s").head
        with manager.create_reader(nadi_scope, "s", serializer=Text()) as reader:
            reader._core._decoder = Unsteady()
            with manager.create_writer(nadi_scope, "s") as writer:
                writer.write_event(b"a").result(60)
                with pytest.raises(UnavailableError):
                    reader.next_events(60)
                assert reader.position() == start
                events = reader.next_events(60)
                assert events is not None
                assert [event.value for event in events] == ["a"]
                assert reader.position() == manager.stream_info(nadi_scope, "s").tail
                writer.write_event(b"b").result(60)
            events = reader.next_events(60)
            assert events is not None
            assert [event.value for event in events] == ["b"]
