"""Writer marks: times noted by writers and commits, and rejected ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import pytest

from nadi.controller.controller import Controller
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import WriterMark
from nadi.errors import StreamNotFoundError
from nadi.limits import TIME_STEPS_MAX
from nadi.naming import segment_id, transaction_segment_name
from nadi.wire import commands as wire
from nadi.wire.rpc import controller_pb2 as pb

from .rpc import Call, code_of, served
from .support import STREAM, scaled, until, with_stream
from .test_reader_groups import METERS, prepare

NOTED = pb.TimestampResponse
REMOVED = pb.RemoveWriterResponse
NAME = StreamName("home", "meters")


def mark(time: int, position: dict[int, int]) -> WriterMark:
    return WriterMark(time, position, steps=((time, position),))


async def note(
    call: Call,
    time: int,
    position: dict[int, int],
    writer: str = "w",
    steps: Sequence[tuple[int, dict[int, int]]] = (),
) -> int:
    cut = pb.StreamCut(streamInfo=METERS, cut=position)
    wire_steps = [pb.TimestampFromWriter.Step(timestamp=at, cut=place) for at, place in steps]
    request = pb.TimestampFromWriter(writer=writer, position=cut, timestamp=time, steps=wire_steps)
    return int((await call("noteTimestampFromWriter", request)).result)


async def remove(call: Call, writer: str, stream: str = "meters") -> int:
    request = pb.RemoveWriterRequest(writer=writer, stream=pb.StreamInfo(scope="home", stream=stream))
    return int((await call("removeWriter", request)).result)


async def marks(controller: Controller) -> dict[str, WriterMark]:
    return {writer: record.value async for writer, record in controller.metadata.marks(NAME).scan()}


async def test_time_and_position_of_a_writer_never_decrease() -> None:
    async with served() as (call, _store, controller):
        await prepare(call)
        assert await note(call, -5, {0: 10, 1: 0}) == NOTED.SUCCESS
        assert await note(call, -5, {0: 10, 1: 3}) == NOTED.SUCCESS
        assert await note(call, -6, {0: 20, 1: 4}) == NOTED.INVALID_TIME
        assert await note(call, 7, {0: 9, 1: 4}) == NOTED.INVALID_POSITION
        assert await note(call, 7, {0: 11, 5: 4}) == NOTED.INVALID_POSITION
        assert await note(call, 1, {0: 1}, "other") == NOTED.SUCCESS
        assert await note(call, 7, {0: 11}) == NOTED.SUCCESS
        steps = (-5, {0: 10, 1: 0}), (-5, {0: 10, 1: 3}), (7, {0: 11})
        other = WriterMark(1, {0: 1}, steps=((1, {0: 1}),))
        assert await marks(controller) == {"w": WriterMark(7, {0: 11}, steps=steps), "other": other}
        missing = pb.StreamCut(streamInfo=pb.StreamInfo(scope="home", stream="none"))
        request = pb.TimestampFromWriter(writer="w", position=missing)
        assert await code_of(call("noteTimestampFromWriter", request)) is grpc.StatusCode.NOT_FOUND
        for writer in ("", "w" * 256):
            assert await code_of(note(call, 1, {}, writer)) is grpc.StatusCode.INVALID_ARGUMENT


async def test_steps_are_stored_in_order_and_invalid_ones_rejected() -> None:
    async with served() as (call, _store, controller):
        await prepare(call)
        assert await note(call, 9, {0: 90}, steps=[(-(1 << 63) + 1, {})]) == NOTED.SUCCESS  # without a position
        assert (await marks(controller))["w"].steps == ()
        steps = [(9, {0: 90}), (10, {0: 95, 1: 2})]
        assert await note(call, 12, {0: 120, 1: 2}, steps=steps) == NOTED.SUCCESS
        assert (await marks(controller))["w"] == WriterMark(12, {0: 120, 1: 2}, steps=tuple(steps))
        for wrong in ([(14, {0: 121}), (13, {0: 122})], [(16, {0: 121})], [(13, {0: 121})] * (TIME_STEPS_MAX + 1)):
            assert await code_of(note(call, 15, {0: 130, 1: 2}, steps=wrong)) is grpc.StatusCode.INVALID_ARGUMENT
        assert await note(call, 15, {0: 130, 1: 2}, steps=[(13, {7: 1})]) == NOTED.INVALID_POSITION
        assert (await marks(controller))["w"].time == 12
        for time in range(15, 15 + 3 * TIME_STEPS_MAX):
            assert await note(call, time, {0: 1_000 + time}) == NOTED.SUCCESS
        stored = (await marks(controller))["w"].steps
        assert len(stored) <= 2 * TIME_STEPS_MAX
        assert stored[-1] == (14 + 3 * TIME_STEPS_MAX, {0: 1_014 + 3 * TIME_STEPS_MAX})


async def test_a_removed_writer_may_come_back() -> None:
    async with served() as (call, _store, controller):
        await prepare(call)
        assert await remove(call, "w") == REMOVED.UNKNOWN_WRITER
        assert await remove(call, "") == REMOVED.UNKNOWN_WRITER
        assert await remove(call, "w", "none") == REMOVED.STREAM_DOES_NOT_EXIST
        await note(call, 5, {0: 1})
        assert await remove(call, "w") == REMOVED.SUCCESS
        assert (await marks(controller))["w"] == WriterMark(5, {0: 1}, alive=False, steps=((5, {0: 1}),))
        assert await note(call, 4, {0: 1}) == NOTED.INVALID_TIME
        assert await note(call, 6, {0: 1}) == NOTED.SUCCESS
        assert (await marks(controller))["w"].alive


async def test_deleting_a_stream_deletes_its_marks() -> None:
    async with served() as (call, store, _controller):
        await prepare(call)
        await note(call, 5, {0: 1})
        await call("sealStream", METERS)
        await call("deleteStream", METERS)
        gone = await store.exchange(wire.GetTableSegmentInfo(1, "_system/_tables/marks/home/meters", ""))
        assert isinstance(gone, wire.NoSuchSegment)
        await prepare(call)
        assert await note(call, 1, {2: 0}) == NOTED.SUCCESS


async def test_a_commit_notes_its_time_where_it_was_merged() -> None:
    async with with_stream(2) as (controller, store, _):

        async def commit(writer: str, time: int | None, sizes: dict[int, int]) -> None:
            transaction = await controller.transactions.create(STREAM, 600_000)
            for number, size in sizes.items():
                store.append(transaction_segment_name(STREAM.segment(number), transaction.txn_id), b"x" * size)
            await controller.transactions.commit(STREAM, transaction.txn_id, writer, time)

            async def done() -> bool:
                return (await controller.transactions.state(STREAM, transaction.txn_id)).name == "COMMITTED"

            await until(done)

        async def stored() -> dict[str, WriterMark]:
            return {writer: record.value async for writer, record in controller.metadata.marks(STREAM).scan()}

        await commit("a", 50, {0: 10, 1: 1})
        await commit("b", None, {0: 5})
        assert await stored() == {"a": mark(50, {0: 10, 1: 1})}
        await commit("a", 40, {0: 1})  # an earlier time adds nothing; the commit is valid
        await commit("", 99, {0: 1})
        assert await stored() == {"a": mark(50, {0: 10, 1: 1})}
        transaction = await controller.transactions.create(STREAM, 600_000)
        store.append(transaction_segment_name(STREAM.segment(0), transaction.txn_id), b"y" * 7)
        await scaled(controller, [0, 1], [(0.0, 0.3), (0.3, 1.0)])
        await controller.transactions.commit(STREAM, transaction.txn_id, "c", 60)

        async def rolled() -> bool:
            return "c" in await stored()

        await until(rolled)
        assert (await stored())["c"] == mark(60, {segment_id(0, 2): 7, segment_id(1, 2): 0})


async def test_a_mark_noted_while_its_stream_is_deleted_leaves_nothing_behind() -> None:
    async with with_stream(1) as (controller, store, _):
        await controller.seal_stream(STREAM)
        table, deleted = "_system/_tables/marks/home/meters", asyncio.Event()

        async def delete_before_the_mark_is_stored(command: wire.Command) -> None:
            if isinstance(command, wire.UpdateTableEntries) and command.segment == table:
                store.before = None
                await controller.delete_stream(STREAM)
                deleted.set()

        store.before = delete_before_the_mark_is_stored
        with pytest.raises(StreamNotFoundError):
            await controller.note_time(STREAM, "w", 1, {0: 0})
        assert deleted.is_set()
        assert table not in store.tables


async def test_the_bucket_mapping_names_this_controller() -> None:
    async with served() as (call, _store, _controller):
        reply = await call("getControllerToBucketMapping", pb.ControllerToBucketMappingRequest())
        assert {host: list(buckets.id) for host, buckets in reply.mapping.items()} == {"127.0.0.1:9090": [0]}
