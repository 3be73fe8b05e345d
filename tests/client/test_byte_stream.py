"""Byte streams as files, against a server in another process."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import shutil
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nadi
from nadi.client import ScalingPolicy, StreamManager, aio
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    InvalidArgumentError,
    PastEndError,
    RequestTimeoutError,
    StreamSealedError,
    TruncatedError,
)
from tests.support.ports import free_port

from .gate import cuts, gated, relayed


def test_written_bytes_are_read(manager: StreamManager) -> None:
    manager.create_stream("sc", "plain")
    pieces = [os.urandom(size) for size in (1, 0, 70_000, 9 << 20, 3)]
    whole = b"".join(pieces)
    with manager.create_byte_writer("sc", "plain") as writer:
        reused = bytearray(9 << 20)
        for piece in pieces:
            reused[: len(piece)] = piece
            assert writer.write(memoryview(reused)[: len(piece)]) == len(piece)
            reused[: len(piece)] = bytes(len(piece))  # as a buffered writer does
        assert writer.tell() == len(whole)
        writer.flush()
        assert manager.segment_info("sc/plain/0.#epoch.0").write_offset == len(whole)
    with manager.create_byte_reader("sc", "plain") as reader:
        assert reader.read() == whole
        assert reader.read(1) == b""
        assert reader.seek(-3, os.SEEK_END) == len(whole) - 3
        assert reader.read(10) == whole[-3:]
        assert reader.seek(1) == reader.tell() == 1
        assert reader.read(5) == whole[1:6]
        assert reader.seek(-4, os.SEEK_CUR) == 2
        assert reader.read(5) == whole[2:7]
    with pytest.raises(ClosedError):
        reader.read(1)


def test_only_buffers_are_written(uri: str, manager: StreamManager) -> None:
    wrong: list[Any] = [5, True, [1, 2], "text", None]
    manager.create_stream("sc", "buffers")

    async def write() -> None:
        async with aio.StreamManager(uri) as manager:
            writer = await manager.create_byte_writer("sc", "buffers")
            for data in wrong:
                with pytest.raises(TypeError):
                    await writer.write(data)
            assert writer.tell() == 0
            await writer.close()

    asyncio.run(write())
    with manager.create_byte_writer("sc", "buffers") as writer:
        for data in wrong:
            with pytest.raises(TypeError):
                writer.write(data)
    with manager.create_byte_reader("sc", "buffers") as reader:
        assert reader.readall() == b""


def test_new_writer_appends_and_reader_sees_it(manager: StreamManager) -> None:
    manager.create_stream("sc", "longer")
    with manager.create_byte_writer("sc", "longer") as writer:
        writer.write(b"one ")
    with manager.create_byte_reader("sc", "longer") as reader:
        assert reader.read(100) == b"one "
        assert reader.read(100) == b""
        with manager.create_byte_writer("sc", "longer") as writer:
            assert writer.tell() == 4
            writer.write(b"two")
        assert reader.read(100) == b"two"


def test_standard_library_file_consumers_work(manager: StreamManager, tmp_path: Path) -> None:
    for stream in ("text", "zip", "parquet", "copied"):
        manager.create_stream("sc", stream)
    with io.TextIOWrapper(io.BufferedWriter(manager.create_byte_writer("sc", "text")), "utf-8") as text:
        text.writelines(f"line {n} é\n" for n in range(2000))
    with io.TextIOWrapper(io.BufferedReader(manager.create_byte_reader("sc", "text")), "utf-8") as lines:
        assert list(lines) == [f"line {n} é\n" for n in range(2000)]

    with io.BufferedWriter(manager.create_byte_writer("sc", "zip")) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", b"a" * 100_000)
        archive.writestr("b.txt", b"b")
    with zipfile.ZipFile(io.BufferedReader(manager.create_byte_reader("sc", "zip"))) as archive:
        assert archive.read("b.txt") == b"b"
        assert archive.read("a.txt") == b"a" * 100_000

    table = pa.table({"n": list(range(1000))})
    with manager.create_byte_writer("sc", "parquet") as writer:
        pq.write_table(table, pa.PythonFile(writer, mode="w"))
    with manager.create_byte_reader("sc", "parquet") as reader:
        assert pq.read_table(pa.PythonFile(reader, mode="r")).equals(table)

    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 << 20))
    with source.open("rb") as opened, manager.create_byte_writer("sc", "copied") as writer:
        shutil.copyfileobj(opened, writer, 1 << 20)
    with manager.create_byte_reader("sc", "copied") as reader, (tmp_path / "target").open("wb") as target:
        shutil.copyfileobj(reader, target, 1 << 20)
    assert (tmp_path / "target").read_bytes() == source.read_bytes()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["set", "cur", "end", "read"]), st.integers(0, 300_000)), max_size=12))
def test_reader_behaves_like_a_file(manager: StreamManager, steps: list[tuple[str, int]]) -> None:
    content = random.Random(7).randbytes(200_000)
    if manager.create_stream("sc", "any-file"):
        with manager.create_byte_writer("sc", "any-file") as writer:
            writer.write(content)
    expected = io.BytesIO(content)
    with io.BufferedReader(manager.create_byte_reader("sc", "any-file"), 10_000) as reader:
        for step, number in steps:
            if step == "read":
                assert reader.read(number) == expected.read(number)
            elif step == "set":
                assert reader.seek(number) == expected.seek(number)
            elif step == "cur":
                assert reader.seek(number // 2, os.SEEK_CUR) == expected.seek(number // 2, os.SEEK_CUR)
            else:
                place = max(-number, -len(content))
                assert reader.seek(place, os.SEEK_END) == expected.seek(place, os.SEEK_END)


def test_writer_survives_a_killed_server(tmp_path: Path) -> None:
    port = free_port()
    server = nadi.embedded(tmp_path, port=port)
    content = random.Random(7).randbytes(24 << 20)
    with StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        manager.create_stream("sc", "st")
        with manager.create_byte_writer("sc", "st", timeout=60) as writer:
            writer.write(content[: 8 << 20])
            writer.flush()
            writer.write(content[8 << 20 :])
            server.kill()
            server = nadi.embedded(tmp_path, port=port)
            writer.flush()
        with manager.create_byte_reader("sc", "st") as reader:
            assert reader.readall() == content
    server.stop()


def test_following_the_tail(manager: StreamManager) -> None:
    manager.create_stream("sc", "followed")
    with manager.create_byte_writer("sc", "followed") as writer:
        writer.write(b"old")
        writer.flush()
        with manager.create_byte_reader("sc", "followed", start=3, follow=True, timeout=0.1) as reader:
            with pytest.raises(RequestTimeoutError):
                reader.read(10)
            reader._core._timeout = 60
            writer.write(b"new")
            writer.flush()
            assert reader.read(10) == b"new"
            reader.seek(1, os.SEEK_END)
            with pytest.raises(PastEndError):
                reader.read(1)
            reader.seek(-1, os.SEEK_CUR)
            reader._core._timeout = 0.1
            with pytest.raises(RequestTimeoutError):
                reader.read(1)
        reader = manager.create_byte_reader("sc", "followed", follow=True, timeout=None)
        writer.close_and_seal()
    assert reader.readall() == b"oldnew"
    assert reader.read(1) == b""
    with pytest.raises(StreamSealedError):
        manager.create_byte_writer("sc", "followed")


def test_two_writers_never_mix(manager: StreamManager) -> None:
    manager.create_stream("sc", "contested")
    first, second = (manager.create_byte_writer("sc", "contested") for _ in range(2))
    first.write(b"first")
    first.flush()
    second.write(b"other")
    with pytest.raises(ConditionFailedError, match="sc/contested"):
        second.flush()
    with pytest.raises(ConditionFailedError):
        second.write(b"more")
    with pytest.raises(ConditionFailedError):
        second.close()
    assert second.closed
    first.write(b" again")
    first.close()
    with manager.create_byte_reader("sc", "contested") as reader:
        assert reader.read() == b"first again"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))])
def test_connections_cut_with_several_appends_in_flight(uri: str, manager: StreamManager, seed: int) -> None:
    chance = random.Random(seed)
    stream = f"cut-off-{seed}"
    manager.create_stream("sc", stream)
    pieces = [chance.randbytes(chance.choice([10, 5_000, 300_000, 1 << 20, 3 << 20])) for _ in range(60)]

    async def write() -> int:
        async with relayed(uri, cuts(chance, 12, 5 << 20)) as (client, relay):
            async with await client.create_byte_writer("sc", stream) as writer:
                for piece in pieces:
                    await writer.write(piece, 60)
                await writer.flush(60)
            return relay.cuts

    assert asyncio.run(write()) >= 6
    with manager.create_byte_reader("sc", stream) as reader:
        assert reader.read() == b"".join(pieces)


def test_racing_writers_store_complete_writes_in_order(uri: str, manager: StreamManager) -> None:
    """Their writes have equal lengths, so that one writer's bytes could exactly replace the other's rejected ones."""
    manager.create_stream("sc", "race")
    size, rounds, lost = 256 << 10, 12, 0

    async def write(client: aio.StreamManager, name: int) -> None:
        nonlocal lost
        for turn in range(rounds):
            writer = await client.create_byte_writer("sc", "race")
            try:
                for number in range(8):
                    head = struct.pack(">BBB", name, turn, number)
                    await writer.write(head + bytes([name]) * (size - len(head)))
                    await asyncio.sleep(0)
                await writer.close(60)
            except ConditionFailedError:
                lost += 1
                with contextlib.suppress(ConditionFailedError):
                    await writer.close()

    async def race() -> None:
        async with aio.StreamManager(uri) as one, aio.StreamManager(uri) as two:
            await asyncio.gather(write(one, 1), write(two, 2), write(two, 3))

    asyncio.run(race())
    assert lost, "the writers never collided"
    with manager.create_byte_reader("sc", "race") as reader:
        stored = reader.read()
    next_number: dict[tuple[int, int], int] = {}
    for at in range(0, len(stored), size):
        name, turn, number = struct.unpack_from(">BBB", stored, at)
        assert stored[at + 3 : at + size] == bytes([name]) * (size - 3)
        assert number == next_number.get((name, turn), 0), "a write is stored without its predecessor"
        next_number[name, turn] = number + 1


def test_writer_of_a_sealed_stream_raises(manager: StreamManager) -> None:
    manager.create_stream("sc", "ended-bytes")
    writer = manager.create_byte_writer("sc", "ended-bytes", timeout=60)
    size, sealed_after = 1 << 20, 8

    def write_on() -> None:
        for number in range(100):
            writer.write(bytes([number]) * size)
            if number == sealed_after:
                manager.seal_stream("sc", "ended-bytes")
        writer.flush()

    with pytest.raises(StreamSealedError, match="sc/ended"):
        write_on()
    with pytest.raises(StreamSealedError, match="sc/ended"):
        writer.close()
    with manager.create_byte_reader("sc", "ended-bytes") as reader:
        stored = reader.read()
    assert len(stored) <= (sealed_after + 1) * size
    assert stored == b"".join(bytes([number]) * size for number in range(len(stored) // size))


def test_truncating_the_head(manager: StreamManager) -> None:
    manager.create_stream("sc", "cut")
    with manager.create_byte_writer("sc", "cut") as writer:
        writer.write(b"0123456789")
        writer.flush()
        writer.truncate_before(4)
    assert manager.stream_info("sc", "cut").head.positions == {0: 4}
    with manager.create_byte_reader("sc", "cut") as reader:
        assert (reader.head(), reader.tail(), reader.tell()) == (4, 10, 4)
        assert reader.read() == b"456789"
        reader.seek(0)
        with pytest.raises(TruncatedError) as gap:
            reader.read(1)
        reader.seek(gap.value.start_offset)
        assert reader.read(2) == b"45"


def test_closing_the_client_or_the_reader_ends_a_wait(uri: str, manager: StreamManager) -> None:
    manager.create_stream("sc", "quiet")
    with ThreadPoolExecutor(1) as threads:
        for close_client in (True, False):
            other = StreamManager(uri)
            reader = other.create_byte_reader("sc", "quiet", follow=True, timeout=None)
            waiting = threads.submit(reader.read, 1)
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
            (other if close_client else reader).close()
            assert isinstance(waiting.exception(60), ClosedError)
            other.close()


def test_bytes_lost_by_a_closed_client_raise(
    uri: str, server: nadi.standalone.EmbeddedServer, manager: StreamManager
) -> None:
    manager.create_stream("sc", "unsaved")
    manager.create_stream("sc", "saved")
    with gated(uri, server.store_address) as (other, gate):
        saved, unsaved = (other.create_byte_writer("sc", name) for name in ("saved", "unsaved"))
        gate.requests.clear()
        unsaved.write(b"x" * (1 << 20))
        other.close()
    saved.close()
    with pytest.raises(ClosedError, match="sc/unsaved"):
        unsaved.close()
    assert unsaved.closed


async def test_blocking_file_has_no_async_methods(uri: str) -> None:
    async with aio.StreamManager(uri) as manager:
        await manager.create_stream("sc", "async")
        writer = await manager.create_byte_writer("sc", "async")
        await writer.write(b"x" * 100_000)
        await writer.flush(60)
        reader = await manager.create_byte_reader("sc", "async", follow=True)
        assert len(await reader.read(100_000)) == 100_000
        waiting = asyncio.create_task(reader.read(1))
        await asyncio.sleep(0.05)
        await writer.write(b"y" * 50_000_000)
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await writer.write(b"z")
    with pytest.raises(ClosedError):
        await writer.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_byte_writer_of_a_scaling_stream_is_rejected(manager: StreamManager) -> None:
    manager.create_stream("sc", "wide", 2)
    for opened in (manager.create_byte_writer, manager.create_byte_reader):
        with pytest.raises(InvalidArgumentError):
            opened("sc", "wide")
    manager.create_stream("sc", "elastic-bytes", scaling=ScalingPolicy.by_data_rate(10))
    with pytest.raises(InvalidArgumentError):
        manager.create_byte_writer("sc", "elastic-bytes")
    manager.update_stream("sc", "elastic-bytes", scaling=ScalingPolicy.fixed(1))
    with manager.create_byte_writer("sc", "elastic-bytes") as writer:
        writer.write(b"fixed")
