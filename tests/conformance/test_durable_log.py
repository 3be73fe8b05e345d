"""Requirements on every durable log, run on each. A new implementation adds itself to `OPENERS`."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import pytest

from nadi.errors import ClosedError, CorruptLogError, FencedError, NotFoundError
from nadi.segmentstore.chain.layout import HEADER_BYTES, ChainPosition, name_of
from nadi.segmentstore.chain.log import ChainLog, ChainStart
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.layout import log_file_name
from nadi.segmentstore.tier1.log import DurableLog, LogAddress, LogRange, PartRead
from tests.support.memory_durable_log import MemoryLog, MemoryStorage
from tests.support.memory_engine import MemoryEngine
from tests.support.replayed import replayed

FILE_BYTES = 64 * 1024


class Opener(Protocol):
    def __call__(self) -> DurableLog: ...

    def flip(self, address: LogAddress, offset: int) -> None:
        """Damage one byte of a frame's payload where it is stored."""


class FileLogs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "log"

    def __call__(self) -> DurableLog:
        return FileLog.open(self._folder, file_bytes=FILE_BYTES, spare_files=2)

    def flip(self, address: LogAddress, offset: int) -> None:
        with (self._folder / log_file_name(address.file)).open("r+b") as file:
            file.seek(address.offset + offset)
            byte = file.read(1)[0]
            file.seek(address.offset + offset)
            file.write(bytes([byte ^ 0x55]))


class MemoryLogs:
    def __init__(self, _: Path) -> None:
        self._storage = MemoryStorage()

    def __call__(self) -> DurableLog:
        return MemoryLog.open(self._storage)

    def flip(self, address: LogAddress, offset: int) -> None:
        payload = bytearray(self._storage.frames[address.sequence])
        payload[offset] ^= 0x55
        self._storage.frames[address.sequence] = bytes(payload)


class ChainLogs:
    """Stores its manifest at once when it is truncated."""

    def __init__(self, _: Path) -> None:
        self._engine, self._start, self._epoch = MemoryEngine(), ChainStart(), 0

    def __call__(self) -> DurableLog:
        self._epoch += 1
        epoch = self._epoch

        async def still_claimed() -> None:
            if self._epoch != epoch:
                raise FencedError(0, self._epoch)

        return _ChainLog(self._engine, 0, epoch, self._start, still_claimed, self._set_start)

    def _set_start(self, start: ChainStart) -> None:
        self._start = start

    def flip(self, address: LogAddress, offset: int) -> None:
        name = name_of(0, ChainPosition(address.file, address.offset))
        stored = bytearray(self._engine.objects[name])
        stored[HEADER_BYTES + offset] ^= 0x55
        self._engine.objects[name] = bytes(stored)


class _ChainLog(ChainLog):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments[:-1])
        self._set_start = arguments[-1]

    def truncate(self, before_sequence: int, keep: Iterable[LogAddress] = ()) -> None:
        if before_sequence > self._start.sequence:
            start = self.start_after(min(before_sequence - 1, self.last_sequence))
            self._set_start(start)
            self.released(start)
        super().truncate(before_sequence, keep)


OPENERS: dict[str, Callable[[Path], Opener]] = {"files": FileLogs, "memory": MemoryLogs, "chain": ChainLogs}


@pytest.fixture(params=list(OPENERS))
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    return OPENERS[request.param](tmp_path)


async def payloads_of(log: DurableLog, after_sequence: int = 0) -> dict[int, bytes]:
    return {frame.address.sequence: frame.payload for frame in await replayed(log, after_sequence)}


@contextlib.asynccontextmanager
async def opened(open_log: Opener, after_sequence: int = 0) -> AsyncIterator[tuple[DurableLog, dict[int, bytes]]]:
    log = open_log()
    try:
        yield log, await payloads_of(log, after_sequence)
    finally:
        await log.close()


async def test_a_new_log_is_empty(open_log: Opener) -> None:
    async with opened(open_log) as (log, frames):
        assert frames == {}
        assert (log.last_sequence, log.size_bytes, log.epoch) == (0, 0, 1)


async def test_frames_are_replayed_in_order_after_reopening(open_log: Opener) -> None:
    payloads = [b"", b"x", b"two parts", bytes(4096), random.Random(1).randbytes(30_000)]

    async with opened(open_log) as (log, _):
        for number, payload in enumerate(payloads, 1):
            address, _ = await log.append([payload[:3], payload[3:]])
            assert address.sequence == number == log.last_sequence
    async with opened(open_log) as (log, frames):
        assert list(frames.items()) == list(enumerate(payloads, 1))
        assert log.last_sequence == len(payloads)
        assert (await log.append([b"more"])).address.sequence == len(payloads) + 1
    async with opened(open_log) as (log, frames):
        assert list(frames.values()) == [*payloads, b"more"]


async def test_a_frame_of_no_parts_and_one_of_many(open_log: Opener) -> None:
    parts = [bytes([n % 256]) * (n % 7) for n in range(5000)]
    async with opened(open_log) as (log, _):
        await log.append([])
        await log.append(parts)
    async with opened(open_log) as (_, frames):
        assert frames == {1: b"", 2: b"".join(parts)}


@pytest.mark.parametrize("size", [FILE_BYTES - 4096 - 100, FILE_BYTES, 20 * 1024 * 1024])
async def test_frames_larger_than_a_file(open_log: Opener, size: int) -> None:
    payload = random.Random(size).randbytes(size)

    async with opened(open_log) as (log, _):
        await log.append([b"before"])
        address, _ = await log.append([payload[:1000], payload[1000:]])
        await log.append([b"after"])
        assert await log.read_at(address, size - 10, 10) == payload[-10:]
    async with opened(open_log) as (_, frames):
        assert frames == {1: b"before", 2: payload, 3: b"after"}


async def test_replay_begins_after_the_given_frame(open_log: Opener) -> None:
    async with opened(open_log) as (log, _):
        for number in range(1, 31):
            await log.append([b"%d" % number * 2000])
    for after in (0, 1, 14, 29, 30):
        async with opened(open_log, after) as (log, frames):
            assert list(frames) == list(range(after + 1, 31))
            assert log.last_sequence == 30


async def test_a_log_that_ends_before_the_given_frame_is_refused(open_log: Opener) -> None:
    """The newest frame is never released: if it is missing, later ones may be missing too."""

    async with opened(open_log) as (log, _):
        for number in range(1, 10):
            await log.append([b"%d" % number])
    for after in (10, 1000):
        log = open_log()
        with pytest.raises(CorruptLogError):
            await replayed(log, after_sequence=after)
        await log.close()
    async with opened(open_log, after_sequence=9) as (log, frames):
        assert frames == {}
        assert (await log.append([b"10"])).address.sequence == 10


PARTS = [b"the head", b"first part" * 100, b"", b"second part" * 1000]
BEGINS = [0, 8, 1008, 1008]


async def test_damaged_part_is_never_returned(open_log: Opener) -> None:
    async with opened(open_log) as (log, _):
        address, checksums = await log.append(PARTS)
        assert len(checksums) == 4 * (len(PARTS) - 1)
        open_log.flip(address, 5_000)
        for number, part in enumerate(PARTS[1:3]):
            checksum = checksums[4 * number :][:4]
            assert await log.read_at(address, BEGINS[number + 1], len(part), checksum) == part
        with pytest.raises(CorruptLogError):
            await log.read_at(address, BEGINS[3], len(PARTS[3]), checksums[8:])
        with pytest.raises(CorruptLogError):
            await log.read_at(address, 0, 8)  # these bytes have no separate checksum
        for wrong in (checksums[:4], bytes(4)):
            with pytest.raises(CorruptLogError):
                await log.read_at(address, BEGINS[3], len(PARTS[3]), wrong)


async def test_a_frame_whose_data_is_damaged_is_replayed_once_it_was_durable(open_log: Opener) -> None:
    async with opened(open_log) as (log, _):
        address, checksums = await log.append(PARTS)
        await log.append([b"the next one"])
        open_log.flip(address, 5_000)
    log = open_log()
    damaged, following = await replayed(log)
    assert (damaged.address, damaged.checksums, damaged.damaged_parts) == (address, checksums, (2,))
    assert damaged.payload.startswith(b"".join(PARTS[:3]))
    assert (following.payload, following.damaged_parts) == (b"the next one", ())
    with pytest.raises(CorruptLogError):
        await log.read_at(address, BEGINS[3], len(PARTS[3]), checksums[8:])
    assert (await log.append([b"3"])).address.sequence == 3
    await log.close()
    open_log.flip(address, 2)
    log = open_log()
    with pytest.raises(CorruptLogError):  # without its head, the frame's changes are unknown
        await replayed(log)
    await log.close()


@pytest.mark.parametrize("place", [2, 5_000])
async def test_replay_ignores_damage_before_its_start(open_log: Opener, place: int) -> None:
    async with opened(open_log) as (log, _):
        addresses = [(await log.append([b"head %d" % n, bytes([n]) * 9_000])).address for n in range(1, 21)]
    for number in (0, 3, 4, 16):
        open_log.flip(addresses[number], place)
    for after in (17, 18, 20):
        async with opened(open_log, after) as (log, frames):
            assert list(frames) == list(range(after + 1, 21))
            assert await log.read_at(addresses[5], 0, 6) == b"head 6"
            with pytest.raises(CorruptLogError):
                await log.read_at(addresses[16], 0, 6)


async def test_read_heads_reports_damage_while_the_log_is_written(open_log: Opener) -> None:
    async def heads(log: DurableLog, after_sequence: int) -> tuple[int, int]:
        """Return the sequence after the verified frames, and the number of damages."""
        sequence = damages = 0
        async for read in log.read_heads(after_sequence):
            sequence, damages = read.sequence, damages + len(read.damages)
        return sequence, damages

    async with opened(open_log) as (log, _):
        addresses = [(await log.append([b"head %d" % n, bytes([n]) * 9_000])).address for n in range(1, 21)]
        assert await heads(log, 0) == (21, 0)
        open_log.flip(addresses[8], 5_000)
        assert await heads(log, 0) == (21, 0)  # damaged data is reported to its readers
        open_log.flip(addresses[8], 2)
        open_log.flip(addresses[3], 2)
        assert await heads(log, 0) == (21, 2)
        assert await heads(log, 4) == (21, 1)
        assert (await heads(log, 9))[1] == 0
        log.truncate(20)
        assert await heads(log, 19) == (21, 0)


async def test_single_frames_can_be_kept(open_log: Opener) -> None:
    async with opened(open_log) as (log, _):
        addresses = [(await log.append([bytes([n]) * 10_000])).address for n in range(1, 41)]
        before, kept = log.size_bytes, addresses[9]
        log.truncate(31, keep=[kept])
        assert log.size_bytes < before / 2
        assert log.has(kept, 10_000)
        assert await log.read_at(kept, 0, 10) == bytes([10]) * 10
    async with opened(open_log, after_sequence=30) as (log, frames):
        assert list(frames) == list(range(31, 41))
        assert await log.read_at(kept, 0, 10) == bytes([10]) * 10
        log.truncate(31, keep=[kept])
        assert log.has(kept, 10_000)
        assert log.has(addresses[39], 10_000)
        assert not log.has(addresses[39], 10_000_000)
        log.truncate(31)
        assert not log.has(kept, 10_000)
        with pytest.raises(NotFoundError):
            await log.read_at(kept, 0, 10)
    async with opened(open_log, after_sequence=30) as (log, frames):
        assert list(frames) == list(range(31, 41))


async def test_parts_are_read_together_as_each_by_itself(open_log: Opener) -> None:
    """Of many frames, unordered, some damaged and some released: the same bytes, or the same error."""
    rng = random.Random(5)
    frames = [
        [b"head %d" % n, *(rng.randbytes(rng.choice([0, 1, 300, 9_000])) for _ in range(rng.randrange(1, 9)))]
        for n in range(60)
    ]

    async def each(log: DurableLog, part: LogRange) -> PartRead:
        try:
            return await log.read_at(*part)
        except (CorruptLogError, NotFoundError) as error:
            return error

    async def check(log: DurableLog, parts: list[LogRange]) -> None:
        one_by_one = [await each(log, part) for part in parts]
        together = await log.read_parts(parts)
        assert [repr(found) for found in together] == [repr(found) for found in one_by_one]
        assert await log.read_parts([]) == []

    async with opened(open_log) as (log, _):
        parts: list[LogRange] = []
        data: list[bytes] = []
        for head, *rest in frames:
            address, checksums = await log.append([head, *rest])
            at = len(head)
            for number, one in enumerate(rest):
                parts.append(LogRange(address, at, len(one), checksums[4 * number : 4 * number + 4]))
                data.append(one)
                at += len(one)
        assert await log.read_parts(parts) == data
        for part in rng.sample([part for part in parts if part.length > 1], 8):
            open_log.flip(part.address, part.offset + part.length // 2)
        log.truncate(20)
        found = await log.read_parts(parts)
        assert {type(one) for one in found} == {bytes, CorruptLogError, NotFoundError}
        await check(log, parts)
        for _ in range(20):
            some = rng.sample(parts, rng.randrange(1, len(parts)))
            await check(log, sorted(some) if rng.random() < 0.5 else some)


async def test_truncate_releases_only_lower_frames(open_log: Opener) -> None:
    async with opened(open_log) as (log, _):
        addresses = [(await log.append([bytes([n]) * 10_000])).address for n in range(1, 41)]
        before = log.size_bytes
        assert before >= 40 * 10_000
        log.truncate(0)
        assert log.size_bytes == before
        log.truncate(31)
        assert 10 * 10_000 <= log.size_bytes < before / 2
        with pytest.raises(NotFoundError):
            await log.read_at(addresses[0], 0, 1)
        assert await log.read_at(addresses[30], 5, 3) == bytes([31]) * 3
        await log.append([b"41"])
    async with opened(open_log, after_sequence=30) as (log, frames):
        assert list(frames) == list(range(31, 42))
        log.truncate(1000)  # all frames
        assert log.size_bytes < before / 2
        assert (await log.append([b"42"])).address.sequence == 42
    async with opened(open_log, after_sequence=41) as (_, frames):
        assert frames == {42: b"42"}


async def test_a_log_that_misses_frames_is_refused(open_log: Opener) -> None:
    async with opened(open_log) as (log, _):
        for n in range(40):
            await log.append([bytes([n]) * 10_000])
        log.truncate(31)
    log = open_log()
    with pytest.raises(CorruptLogError):
        await replayed(log, after_sequence=3)
    await log.close()
    async with opened(open_log, after_sequence=30) as (_, frames):
        assert len(frames) == 10


async def test_earlier_owner_is_fenced(open_log: Opener) -> None:
    async with opened(open_log) as (former, _):
        await former.append([b"1"])
        async with opened(open_log) as (owner, frames):
            assert frames == {1: b"1"}
            assert owner.epoch == former.epoch + 1
            with pytest.raises(ClosedError):
                await former.append([b"not acknowledged"])
            await owner.append([b"2"])
            with pytest.raises(ClosedError):
                await former.append([b"not acknowledged"])
            await owner.append([b"3"])
    async with opened(open_log) as (log, frames):
        assert frames == {1: b"1", 2: b"2", 3: b"3"}
        assert log.epoch == 3


async def test_a_cancelled_append_leaves_the_log_usable(open_log: Opener) -> None:
    async with opened(open_log) as (log, _):
        task = asyncio.create_task(log.append([b"whole or not at all"]))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    async with opened(open_log) as (log, frames):
        assert frames in ({}, {1: b"whole or not at all"})
        await log.append([b"next"])
    async with opened(open_log) as (_, again):
        assert list(again.values()) == [*frames.values(), b"next"]


async def test_a_closed_log_refuses(open_log: Opener) -> None:
    log = open_log()
    await replayed(log)
    address, _ = await log.append([b"1"])
    await log.close()
    await log.close()
    calls: list[Awaitable[object]] = [log.append([b"2"]), log.read_at(address, 0, 1)]
    for call in calls:
        with pytest.raises(ClosedError):
            await call


@pytest.mark.parametrize("seed", range(6))
async def test_random_lives_agree_with_a_list(open_log: Opener, seed: int) -> None:
    """Random appends, reads, truncations and reopenings, compared with the frames in a dict."""

    rng = random.Random(seed)
    model: dict[int, bytes] = {}
    addresses: dict[int, LogAddress] = {}
    kept_from = 1
    for _ in range(8):
        async with opened(open_log, kept_from - 1) as (log, frames):
            assert frames == {s: p for s, p in model.items() if s >= kept_from}
            for _ in range(rng.randrange(25)):
                action = rng.random()
                if action < 0.7:
                    payload = rng.randbytes(rng.choice([0, 1, 4048, 4049, 9000, 40_000, 70_000]))
                    half = rng.randrange(len(payload) + 1)
                    address, _ = await log.append([payload[:half], payload[half:]])
                    model[address.sequence], addresses[address.sequence] = payload, address
                elif action < 0.9 and (live := [s for s in model if s >= kept_from]):
                    sequence = rng.choice(live)
                    size = len(model[sequence])
                    assert await log.read_at(addresses[sequence], 0, size) == model[sequence]
                elif model:
                    kept_from = rng.randrange(kept_from, max(model) + 2)
                    log.truncate(kept_from)
            assert log.last_sequence == max(model, default=0)
