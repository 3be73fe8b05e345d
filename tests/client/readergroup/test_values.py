"""Readers of a group with a serializer, blocking and asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from nadi.client import ReaderGroupManager, StreamManager, ValueRead, aio
from nadi.client.serializers import Json, Struct, Text
from nadi.client.serializers.codec import EventDecoder
from nadi.errors import InvalidArgumentError, SerializationError, UnavailableError

from .support import got, new_group, new_stream


class Reading(msgspec.Struct):
    meter: str
    wh: int


def written(manager: StreamManager, stream: str, count: int) -> None:
    with manager.create_writer("sc", stream, serializer=Struct(Reading)) as writer:
        writer.write_batch([Reading(f"m{i % 4}", i) for i in range(count)], [f"m{i % 4}" for i in range(count)])


def test_values_one_by_one_and_by_blocks_of_two_streams(manager: StreamManager, groups: ReaderGroupManager) -> None:
    streams = [new_stream(manager, 2), new_stream(manager, 3)]
    for stream in streams:
        written(manager, stream, 100)
    group = new_group(groups, streams)
    ones: list[int] = []
    with group.create_reader("ones", serializer=Struct(Reading)) as reader:
        while len(ones) < 120:
            read = got(reader.read_next_event(60))
            assert read.event is not None
            assert read.events == [read.event]
            assert read.offset == read.event.offset
            ones.append(read.event.value.wh)
    with group.create_reader("blocks", serializer=Struct(Reading)) as reader:
        many: list[int] = []
        while (block := reader.read_next_block(60 if len(ones + many) < 200 else 0.3)) is not None:
            many += [event.value.wh for event in block.events]
    assert sorted(ones + many) == sorted([*range(100), *range(100)])


def test_value_reader_returns_notices_like_a_byte_reader(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1)
    with manager.create_writer("sc", stream, serializer=Json()) as writer:
        writer.write_batch([0, 1, 2], "k")
    group = new_group(groups, stream, checkpoint_interval_ms=200)
    with group.create_reader("r", serializer=Json()) as reader:
        reads: list[ValueRead[Any]] = []
        while not reads or reads[-1].checkpoint != "interval-2":
            reads.append(got(reader.read_next_event(60)))
        assert [event.value for read in reads for event in read.events] == [0, 1, 2]
        group.reset_reader_group([manager.stream_info("sc", stream).tail])
        while not got(reader.read_next_event(60)).is_reset:
            pass
        manager.seal_stream("sc", stream)
        assert [read.is_reset for read in reader if read.checkpoint is None] == []


def test_undecodable_event_does_not_affect_others(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1)
    with manager.create_writer("sc", stream) as writer:
        writer.write_batch([b"1", b"{", b"3"], "k")
    with new_group(groups, stream).create_reader("r", serializer=Json()) as reader:
        read = got(reader.read_next_block(60))
        first, broken, last = read.events
        assert (first.value, last.value, broken.data) == (1, 3, b"{")
        with pytest.raises(SerializationError):
            broken.value  # noqa: B018


def test_reader_with_an_invalid_serializer_is_rejected(manager: StreamManager, groups: ReaderGroupManager) -> None:
    group = new_group(groups, new_stream(manager, 1))
    with pytest.raises(InvalidArgumentError):
        group.create_reader("r", serializer=Text)  # type: ignore[call-overload]
    assert group.online_readers() == []


def test_event_waits_for_an_unavailable_schema(uri: str, manager: StreamManager, groups: ReaderGroupManager) -> None:
    """The next read returns it; if the reader leaves before, another reader gets it."""
    stream = new_stream(manager, 1)
    written(manager, stream, 3)
    group = new_group(groups, stream)

    class Absent(EventDecoder[Reading]):
        def __init__(self, inner: Any) -> None:
            self.inner, self.failures = inner, 1

        def at_hand(self, events: Iterable[bytes]) -> None:
            return None

        async def prepare(self, events: Iterable[bytes]) -> Callable[[bytes], Reading]:
            self.failures -= 1
            if self.failures >= 0:
                raise UnavailableError("the schema can't be fetched now")
            found: Callable[[bytes], Reading] = await self.inner.prepare(events)
            return found

    async def test() -> None:
        async with aio.StreamManager(uri) as client:
            found = await client.reader_group_manager("sc").get_reader_group(group.name)
            reader = await found.create_reader("r", serializer=Struct(Reading))
            (name,) = reader._decoders
            reader._decoders = {name: Absent(reader._decoders[name])}
            with pytest.raises(UnavailableError):
                await reader.read_next_event(60)
            assert set(reader.positions().values()) == {0}
            values = [
                read.event.value.wh for _ in range(2) if (read := await reader.read_next_event(60)) and read.event
            ]
            assert values == [0, 1]
            reader._decoders = {name: Absent(reader._decoders[name].inner)}  # type: ignore[attr-defined]
            reader._reader._assigned.put_back()
            with pytest.raises(UnavailableError):
                await reader.read_next_event(60)
            await reader.close()
            async with await found.create_reader("other", serializer=Struct(Reading)) as other:
                async for read in other.blocks():
                    assert [event.value.wh for event in read.events] == [2]
                    break

    asyncio.run(test())
