"""The log of files under crashes, damage, full disks and stale frames."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nadi.errors import (
    ClosedError,
    CorruptLogError,
    DataFolderVersionError,
    StorageFullError,
    UnavailableError,
)
from nadi.segmentstore.tier1 import disk, layout
from nadi.segmentstore.tier1.fence import Fence
from nadi.segmentstore.tier1.files import FileLog, WritePace
from nadi.segmentstore.tier1.layout import (
    BLOCK_BYTES,
    FRAME_HEADER_BYTES,
    FileHeader,
    FrameHeader,
    checksum_at,
    encode_table,
)
from nadi.segmentstore.tier1.log import ALL, HALF, NOTHING, LogAddress
from tests.support.replayed import replayed
from tests.support.waiting import until_async

FILE_BYTES = 64 * 1024


@pytest.fixture(autouse=True)
def thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Write small frames in either thread, depending on the disk's speed: the bytes are equal."""
    in_loop = getattr(request, "param", "loop's thread") == "loop's thread"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WritePace, "is_quick", lambda _, size: in_loop and size < FILE_BYTES)
        yield


in_either_thread = pytest.mark.parametrize("thread", ["loop's thread", "writer thread"], indirect=True)


def open_log(folder: Path, file_bytes: int = FILE_BYTES) -> FileLog:
    return FileLog.open(folder, file_bytes=file_bytes, spare_files=2)


def write(folder: Path, payloads: list[bytes], after_sequence: int = 0, truncate_to: int = 0) -> list[LogAddress]:
    """Run one life of a log: open, append, maybe truncate, and end (`close` writes nothing, like a crash)."""

    async def life() -> list[LogAddress]:
        log = open_log(folder)
        try:
            await replayed(log, after_sequence)
            addresses = [(await log.append([payload])).address for payload in payloads]
            log.truncate(truncate_to)
            return addresses
        finally:
            await log.close()

    return asyncio.run(life())


def read(folder: Path, after_sequence: int = 0) -> list[bytes]:
    async def life() -> list[bytes]:
        log = open_log(folder)
        try:
            return [frame.payload for frame in await replayed(log, after_sequence)]
        finally:
            await log.close()

    return asyncio.run(life())


def path_of(folder: Path, address: LogAddress) -> Path:
    return folder / layout.log_file_name(address.file)


def start_of(address: LogAddress) -> int:
    return address.offset - FRAME_HEADER_BYTES


def change(path: Path, offset: int, change_bytes: Callable[[bytes], bytes], length: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(length)
        file.seek(offset)
        file.write(change_bytes(old))


def flip(old: bytes) -> bytes:
    return bytes(byte ^ 0x55 for byte in old)


def log_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.nadi")}


def frames(count: int, size: int = 10_000, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size) for _ in range(count)]


def assert_refused(folder: Path, file: Path, offset: int, after_sequence: int = 0) -> None:
    before = log_files(folder)
    with pytest.raises(CorruptLogError) as caught:
        read(folder, after_sequence)
    assert (caught.value.file, caught.value.offset) == (str(file), offset)
    assert log_files(folder) == before


# --- torn tails ----------------------------------------------------------------------------------

LAST_BYTES = 10_000
PLACES = [
    *range(0, FRAME_HEADER_BYTES + 1, 8),
    FRAME_HEADER_BYTES + 1,
    511,
    4095,
    4096,
    4097,
    8192,
    FRAME_HEADER_BYTES + LAST_BYTES - 1,
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("damage", ["garbled", "zeros"])
def test_a_torn_last_frame_is_dropped(tmp_path: Path, damage: str, place: int) -> None:
    payloads = frames(2)
    last = write(tmp_path, [*payloads, frames(1, LAST_BYTES, seed=9)[0]])[-1]
    path, at = path_of(tmp_path, last), start_of(last) + place
    if damage == "garbled" and place < FRAME_HEADER_BYTES + LAST_BYTES:
        change(path, at, flip)
    else:
        change(path, at, lambda old: bytes(len(old)), FRAME_HEADER_BYTES + LAST_BYTES - place)
    assert read(tmp_path) == payloads
    write(tmp_path, [b"after the crash"])
    assert read(tmp_path) == [*payloads, b"after the crash"]


@pytest.mark.parametrize("place", [20, FRAME_HEADER_BYTES, FRAME_HEADER_BYTES + 500])
def test_dropped_frame_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, place: int) -> None:
    last = write(tmp_path, frames(3))[-1]
    assert len(read(tmp_path)) == 3
    assert not caplog.records
    change(path_of(tmp_path, last), start_of(last) + place, flip)
    assert len(read(tmp_path)) == 2
    assert "dropped frame 3" in caplog.text


def test_damaged_padding_is_ignored(tmp_path: Path) -> None:
    payloads = [*frames(1), b"short"]
    last = write(tmp_path, payloads)[-1]
    end = last.offset + len(payloads[-1])
    assert not any(path_of(tmp_path, last).read_bytes()[end : start_of(last) + BLOCK_BYTES])
    change(path_of(tmp_path, last), end, flip, start_of(last) + BLOCK_BYTES - end)
    assert read(tmp_path) == payloads


@pytest.mark.parametrize("place", [5_000, BLOCK_BYTES, 1, 0])
def test_a_last_file_that_is_shorter_than_it_was_is_refused(tmp_path: Path, place: int) -> None:
    """A crash tears the write in progress, but shortens no file: acknowledged frames may be lost with its end."""
    last = write(tmp_path, frames(3))[-1]
    os.truncate(path_of(tmp_path, last), start_of(last) + place)
    assert_refused(tmp_path, path_of(tmp_path, last), start_of(last))


def test_torn_first_frame_of_a_new_log(tmp_path: Path) -> None:
    first = write(tmp_path, [b"first"])[0]
    change(path_of(tmp_path, first), first.offset, flip)
    assert read(tmp_path) == []
    write(tmp_path, [b"again"])
    assert read(tmp_path) == [b"again"]


@in_either_thread
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_blocks_of_the_last_write_may_be_lost(tmp_path: Path, data: st.DataObject) -> None:
    """Lives of random appends, each ended by a power cut after which any blocks of the last write may survive."""
    folder = tmp_path / "log"
    shutil.rmtree(folder, ignore_errors=True)
    model: list[bytes] = []
    sizes = st.sampled_from([0, 1, 4048, 4049, 9_000, 30_000, 70_000])
    for seed in range(data.draw(st.integers(1, 4))):
        more = [random.Random(seed).randbytes(size) for size in data.draw(st.lists(sizes, max_size=8))]
        write(folder, more)
        model += more
        unacknowledged = random.Random(-seed).randbytes(data.draw(sizes))
        before, address = log_files(folder), write(folder, [unacknowledged])[0]
        path, start = path_of(folder, address), start_of(address)
        old = before.get(path.name, b"")
        blocks = range(start, start + layout.frame_bytes(len(unacknowledged)), BLOCK_BYTES)
        lost = data.draw(st.sets(st.sampled_from(blocks)))
        for block in lost:
            former = old[block : block + BLOCK_BYTES].ljust(BLOCK_BYTES, b"\0")
            change(path, block, lambda _, former=former: former)  # type: ignore[misc]
        recovered = read(folder)
        assert recovered in (model, [*model, unacknowledged])
        assert lost or recovered != model
        model = recovered


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 4, 10, FRAME_HEADER_BYTES - 1, FRAME_HEADER_BYTES, 4096, 9_000])
def test_damage_before_a_whole_frame_is_refused(tmp_path: Path, place: int) -> None:
    addresses = write(tmp_path, frames(3))
    change(path_of(tmp_path, addresses[1]), start_of(addresses[1]) + place, flip)
    assert_refused(tmp_path, path_of(tmp_path, addresses[1]), start_of(addresses[1]))


def test_two_damaged_frames_are_refused_when_the_later_header_is_whole(tmp_path: Path) -> None:
    addresses = write(tmp_path, frames(2))
    for address in addresses:
        change(path_of(tmp_path, address), address.offset + 20, flip)
    assert_refused(tmp_path, path_of(tmp_path, addresses[0]), start_of(addresses[0]))


def test_damage_at_the_end_of_a_file_is_refused_when_there_is_a_next(tmp_path: Path) -> None:
    addresses = write(tmp_path, frames(12))
    last_of_first = max(address for address in addresses if address.file == 1)
    os.truncate(path_of(tmp_path, last_of_first), last_of_first.offset + 5)
    assert_refused(tmp_path, path_of(tmp_path, last_of_first), start_of(last_of_first))


def test_a_file_that_ends_within_data_is_refused(tmp_path: Path) -> None:
    """The frame's head is intact, so the next frame would start after the file's end."""

    async def write_parts() -> list[LogAddress]:
        log = open_log(tmp_path)
        await replayed(log)
        addresses = [(await log.append([b"head", data])).address for data in frames(12)]
        await log.close()
        return addresses

    addresses = asyncio.run(write_parts())
    of_first = [address for address in addresses if address.file == 1]
    path = path_of(tmp_path, of_first[-2])
    size = of_first[-2].offset + 100
    os.truncate(path, size)
    assert_refused(tmp_path, path, size)


def test_damage_left_by_an_earlier_owner_is_refused(tmp_path: Path) -> None:
    """An owner's last frame was durable if another owner wrote after it."""
    first = write(tmp_path, [b"first"])[0]
    write(tmp_path, [b"second"])
    change(path_of(tmp_path, first), first.offset, flip)
    assert_refused(tmp_path, path_of(tmp_path, first), start_of(first))


@pytest.mark.parametrize("file", [1, 2, 3, 4])
def test_damaged_file_header_is_reconstructed_from_the_first_frame(
    tmp_path: Path, file: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert write(tmp_path, frames(16))[-1].file == 4  # the last one in use; 5 is only prepared
    change(tmp_path / layout.log_file_name(file), 9, flip)
    assert read(tmp_path) == frames(16)
    assert f"{layout.log_file_name(file)}: its header is damaged" in caplog.text
    write(tmp_path, [b"more"])
    assert read(tmp_path) == [*frames(16), b"more"]


@pytest.mark.parametrize("file", [1, 2, 3, 4])
def test_a_file_whose_first_blocks_are_damaged_is_refused(tmp_path: Path, file: int) -> None:
    write(tmp_path, frames(16))
    path = tmp_path / layout.log_file_name(file)
    change(path, 0, flip, BLOCK_BYTES + FRAME_HEADER_BYTES)
    with pytest.raises(CorruptLogError):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", bytes(FILE_BYTES)])
def test_a_last_file_that_lost_its_content_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file is prepared only once the previous one is in use."""
    write(tmp_path, frames(16))
    assert max(log_files(tmp_path)) == layout.log_file_name(5)
    path = tmp_path / layout.log_file_name(4)
    path.write_bytes(content)
    assert_refused(tmp_path, path, 0)


@pytest.mark.parametrize("file", [1, 2, 3, 4])
def test_a_missing_file_is_refused(tmp_path: Path, file: int) -> None:
    write(tmp_path, frames(16))
    path = tmp_path / layout.log_file_name(file)
    path.unlink()
    assert_refused(tmp_path, path if file > 1 else tmp_path / layout.log_file_name(2), 0)


@pytest.mark.parametrize("content", [b"", b"\0" * FILE_BYTES, b"nadi-log" * 700, b"\xff" * 5000])
def test_a_last_file_that_was_only_prepared_is_harmless(tmp_path: Path, content: bytes) -> None:
    payloads = frames(7)
    write(tmp_path, payloads)
    assert max(log_files(tmp_path)) == layout.log_file_name(3)
    (tmp_path / layout.log_file_name(3)).write_bytes(content)
    write(tmp_path, [b"more"])
    assert read(tmp_path) == [*payloads, b"more"]


def test_files_of_another_format_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(layout, "FORMAT", 3)
        write(tmp_path, [b"from the future"])
    with pytest.raises(DataFolderVersionError):
        read(tmp_path)


def test_the_epoch_file_can_be_lost(tmp_path: Path) -> None:
    write(tmp_path, [b"1"])
    write(tmp_path, [b"2"])
    (tmp_path / "epoch").write_bytes(b"garbage")
    write(tmp_path, [b"3"])
    (tmp_path / "epoch").unlink()
    log = open_log(tmp_path)
    assert log.epoch == 4
    asyncio.run(log.close())
    assert read(tmp_path) == [b"1", b"2", b"3"]


# --- stale and forged frames ---------------------------------------------------------------------


@in_either_thread
def test_stale_frames_in_recycled_files_never_come_back(tmp_path: Path) -> None:
    """Frames have one size, so that each stale frame is exactly where a live one would be."""
    sequence, stale = 0, 0
    for life in range(6):
        count = 7 + life
        payloads = frames(count, seed=life)
        write(tmp_path, payloads, sequence, truncate_to=sequence + count)
        sequence += count
        assert read(tmp_path, sequence - 1) == payloads[-1:]
        live = max(path for path in tmp_path.glob("log-*.nadi") if FileHeader.decode(path.read_bytes(), path))
        stale += live.read_bytes().count(layout.FRAME_MAGIC, BLOCK_BYTES) > 1
    assert stale, "the test must encounter stale frames"


@in_either_thread
@pytest.mark.parametrize("read_bytes", [1, 30_000, 1 << 20])
async def test_a_replay_is_read_in_pieces_and_may_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr("nadi.segmentstore.tier1.reading._REPLAY_BYTES", read_bytes)
    log = open_log(tmp_path)
    assert await replayed(log) == []
    payloads = [*frames(60), b""]
    for payload in payloads:
        await log.append([payload])
    await log.close()
    log = open_log(tmp_path)
    async for frame in log.replay(0):
        assert frame.payload == payloads[0]
        break
    await log.close()
    assert log._replaying is not None
    assert log._replaying.done(), "no read of a closed log continues"
    log = open_log(tmp_path)
    assert [frame.payload for frame in await replayed(log)] == payloads
    await log.close()


@in_either_thread
async def test_files_are_recycled(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert await replayed(log) == []
    inodes = set()
    for payload in frames(200):
        address, _ = await log.append([payload])
        inodes.add(path_of(tmp_path, address).stat().st_ino)
        log.truncate(address.sequence - 3)
    await log.close()
    assert address.file == 40
    assert len(inodes) < 10
    assert len(log_files(tmp_path)) <= 6  # in use, prepared, and two spares


def test_few_spares_are_kept_and_all_of_one_size(tmp_path: Path) -> None:
    sizes = [100_000] * 3 + [10_000] * 60
    write(tmp_path, [bytes(size) for size in sizes], truncate_to=len(sizes))
    files = log_files(tmp_path)
    assert len([name for name in files if name.startswith("spare-")]) == 2
    assert {len(content) for content in files.values()} == {FILE_BYTES}
    assert len(files) == 4  # one in use and one prepared


@in_either_thread
async def test_a_read_under_way_holds_back_recycling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, go_on = os.pread, threading.Event()

    def slow_pread(fd: int, length: int, offset: int) -> bytes:
        assert go_on.wait(60)
        return pread(fd, length, offset)

    payloads = frames(60)
    log = open_log(tmp_path)
    assert await replayed(log) == []
    address, _ = await log.append([payloads[0]])
    monkeypatch.setattr(os, "pread", slow_pread)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))  # the second read waits
    reading = asyncio.create_task(log.read_at(address, 0, 10_000))
    cancelled = asyncio.create_task(log.read_at(address, 0, 10_000))
    await asyncio.sleep(0)
    cancelled.cancel()
    for payload in payloads[1:]:
        newest, _ = await log.append([payload])
        log.truncate(newest.sequence)
    assert path_of(tmp_path, address).exists()
    go_on.set()
    assert await reading == payloads[0]
    for payload in payloads:
        log.truncate((await log.append([payload])).address.sequence)
    await log.close()
    assert len(log_files(tmp_path)) <= 6
    assert not path_of(tmp_path, address).exists()


@pytest.mark.parametrize("other", ["another log", "another epoch"])
def test_a_foreign_frame_in_the_right_place_is_not_taken(tmp_path: Path, other: str) -> None:
    """File number, offset, sequence and size are equal; only the log's id or the epoch differs."""
    folder, foreign = tmp_path / "log", tmp_path / "other"
    write(folder, [])
    if other == "another epoch":
        shutil.copytree(folder, foreign)
    write(foreign, [])
    third = write(foreign, frames(3))[2]
    last = write(folder, frames(2, seed=1))[1]
    assert (last.file, last.sequence) == (third.file, 2)
    image = path_of(foreign, third).read_bytes()[start_of(third) :]
    change(path_of(folder, last), start_of(third), lambda _: image)
    assert read(folder) == frames(2, seed=1)


def test_a_payload_may_be_the_image_of_a_log(tmp_path: Path) -> None:
    first = write(tmp_path, frames(3))
    image = path_of(tmp_path, first[0]).read_bytes()
    carrier = bytes(BLOCK_BYTES - FRAME_HEADER_BYTES) + image[BLOCK_BYTES:]  # frames at whole blocks
    last = write(tmp_path, [carrier])[0]
    assert read(tmp_path) == [*frames(3), carrier]
    change(path_of(tmp_path, last), last.offset, flip)
    assert read(tmp_path) == frames(3)


# --- earlier owners ---------------------------------------------------------------------------------


@in_either_thread
async def test_a_fenced_owner_writes_nothing(tmp_path: Path) -> None:
    former = open_log(tmp_path)
    assert await replayed(former) == []
    await former.append([b"1"])
    owner = open_log(tmp_path)
    before = (tmp_path / layout.log_file_name(1)).read_bytes()
    with pytest.raises(ClosedError):
        await former.append([b"too late"])
    assert (tmp_path / layout.log_file_name(1)).read_bytes() == before
    await asyncio.gather(former.close(), owner.close())


@in_either_thread
async def test_an_owner_fenced_while_it_writes_does_not_acknowledge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdatasync, owners = os.fdatasync, []

    former = open_log(tmp_path)
    assert await replayed(former) == []
    await former.append([b"1"])

    def take_over(fd: int) -> None:
        fdatasync(fd)
        if fd == former._writer._fd:  # not of a file being prepared
            owners.append(open_log(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", take_over)
        with pytest.raises(ClosedError):
            await former.append([b"in the log, and not acknowledged"])
    await asyncio.gather(former.close(), *(owner.close() for owner in owners))


@in_either_thread
def test_late_write_of_an_earlier_owner_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write sent to the disk before the fence that lands after it."""

    async def life() -> None:
        former = open_log(tmp_path)
        assert await replayed(former) == []
        await former.append([b"1"])
        owner = open_log(tmp_path)
        assert [frame.payload for frame in await replayed(owner)] == [b"1"]
        await owner.append([b"2"])
        with monkeypatch.context() as patch:
            patch.setattr(Fence, "check", lambda fence: None)
            await former.append([b"late"])
        await owner.append([b"3"])
        await asyncio.gather(former.close(), owner.close())

    asyncio.run(life())
    assert read(tmp_path) == [b"1", b"2", b"3"]


# --- failing disks -----------------------------------------------------------------------------


class SmallDisk:
    """Replaces os.pwrite: accepts `room` bytes, then half of a write, then fails."""

    def __init__(self, room: int, error: int) -> None:
        self.room, self.error = room, error
        self._pwrite = os.pwrite

    def __call__(self, fd: int, data: memoryview, offset: int) -> int:
        whole = self.room // BLOCK_BYTES * BLOCK_BYTES  # direct writes have whole blocks
        room = self.room if len(data) < BLOCK_BYTES else whole
        if room <= 0:
            raise OSError(self.error, os.strerror(self.error))
        part = data[: min(len(data), room)]
        self.room -= len(part)
        return self._pwrite(fd, part, offset)


@in_either_thread
@pytest.mark.parametrize("room", [0, BLOCK_BYTES, 2 * BLOCK_BYTES, 40 * BLOCK_BYTES])
@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, StorageFullError), (errno.EDQUOT, StorageFullError), (errno.EIO, OSError)],
)
def test_a_failed_write_ends_the_log_until_it_is_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, number: int, error: type[Exception]
) -> None:
    payloads = frames(40)
    acknowledged: list[bytes] = []

    async def append_all(log: FileLog, payloads: list[bytes], acknowledged: list[bytes]) -> None:
        for payload in payloads:
            await log.append([payload])
            acknowledged.append(payload)

    async def life() -> None:
        log = open_log(tmp_path)
        assert await replayed(log) == []
        await append_all(log, payloads[:2], acknowledged)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", SmallDisk(room, number))
            with pytest.raises(error):
                await append_all(log, payloads[2:], acknowledged)
        with pytest.raises(UnavailableError):
            await log.append([b"the disk has space, but its contents are uncertain"])
        await log.close()

    asyncio.run(life())
    recovered = read(tmp_path)
    assert recovered in (acknowledged, payloads[: len(acknowledged) + 1])
    write(tmp_path, [b"more"])
    assert read(tmp_path) == [*recovered, b"more"]
    assert not list(tmp_path.glob("*.tmp"))


@in_either_thread
def test_a_failed_sync_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "lost")

    async def life() -> None:
        log = open_log(tmp_path)
        assert await replayed(log) == []
        await log.append([b"1"])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            with pytest.raises(OSError, match="lost"):
                await log.append([b"2"])
        await log.close()

    asyncio.run(life())
    assert read(tmp_path)[:1] == [b"1"]


@in_either_thread
def test_buffered_where_direct_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "supports_direct", lambda folder: False)
    payloads = frames(12, 33_333)
    write(tmp_path, payloads)
    assert read(tmp_path) == payloads


def open_below(folder: Path) -> list[str]:
    """Return the files in the folder that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if path.startswith(str(folder))]


@in_either_thread
def test_close_leaves_no_open_files(tmp_path: Path) -> None:
    log = open_log(tmp_path / "open")
    assert open_below(tmp_path)
    asyncio.run(log.close())
    for folder in ("a", "b"):
        write(tmp_path / folder, frames(12))
        read(tmp_path / folder)
    assert not open_below(tmp_path)


def test_new_files_begin_small_and_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.tier1.writer.LOG_FIRST_FILE_BYTES", FILE_BYTES // 4)
    payloads = [b"%d" % number * 2000 for number in range(40)]
    addresses = write(tmp_path, payloads)
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("log-*.nadi"))]
    assert sizes[:4] == [FILE_BYTES // 4, FILE_BYTES // 2, FILE_BYTES, FILE_BYTES]
    assert all(address.offset + 2000 <= sizes[address.file - addresses[0].file] for address in addresses)
    assert read(tmp_path) == payloads
    write(tmp_path, payloads, after_sequence=addresses[-1].sequence, truncate_to=addresses[-1].sequence)
    spares = list(tmp_path.glob("spare-*.nadi"))
    assert spares, "released files are stored"
    assert all(path.stat().st_size == FILE_BYTES for path in spares)


class Disk:
    """Replaces the file system's answer of how much the log may take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        monkeypatch.setattr(disk, "spare_bytes", lambda _: self.free_bytes)
        monkeypatch.setattr("nadi.segmentstore.tier1.writer._RETRY_S", 0.01)


@in_either_thread
def test_log_on_a_full_disk_refuses_in_advance_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def life() -> tuple[list[bytes], list[bytes]]:
        space = Disk(monkeypatch, 1 << 30)
        log = open_log(tmp_path)
        assert await replayed(log) == []
        written: list[bytes] = []

        async def append(payload: bytes) -> None:
            await log.append([payload])
            written.append(payload)

        await append(b"one")
        await until_async(lambda: (tmp_path / "kept-aside").exists() and log._supply.ready is not None)
        space.free_bytes = -1
        for _ in range(2):  # the second file is ready, and takes one frame; a third doesn't fit
            await append(bytes(FILE_BYTES - 4 * BLOCK_BYTES))
        await log.settle(FILE_BYTES)
        await until_async(lambda: log.is_full)
        rest, half, whole = (log.free_bytes(share) for share in (NOTHING, HALF, ALL))
        assert 0 < rest < 2 * BLOCK_BYTES < half < FILE_BYTES // 2 < whole < FILE_BYTES
        await append(b"fits" * (rest // 4))
        assert log.free_bytes() <= 0

        await append(bytes(half))  # in the reserved file
        await until_async(lambda: log.is_full)  # its thread retries
        assert log.free_bytes() < 0, "other operations can't use it"
        assert log.free_bytes(HALF) < BLOCK_BYTES < log.free_bytes(ALL) < FILE_BYTES // 2
        while log.free_bytes(ALL) >= 0:
            await append(b"all of it")
        with pytest.raises(StorageFullError):
            await log.append([bytes(FILE_BYTES)])
        await log.close()

        log = open_log(tmp_path)  # a new owner knows it too
        again = [frame.payload for frame in await replayed(log)]
        await log.settle(1)
        assert log.free_bytes(ALL) < 0
        space.free_bytes = 1 << 30
        await until_async(lambda: log._supply.ready is not None)
        await append(b"more")
        await until_async(lambda: (tmp_path / "kept-aside").exists())
        await log.close()
        return written, again

    written, again = asyncio.run(life())
    assert again == written[:-1]
    assert read(tmp_path) == written


@in_either_thread
async def test_released_files_are_deleted_on_a_nearly_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nadi.segmentstore.tier1.writer.LOG_RESERVE_BYTES", FILE_BYTES // 2)
    space = Disk(monkeypatch, 1 << 30)
    log = open_log(tmp_path)
    assert await replayed(log) == []
    await log.append([b"one"])
    await until_async(lambda: (tmp_path / "kept-aside").exists() and log._supply.ready is not None)
    space.free_bytes = -1
    for _ in range(2):
        await log.append([bytes(FILE_BYTES - 4 * BLOCK_BYTES)])
    await until_async(lambda: log.is_full)
    await log.append([bytes(2 * BLOCK_BYTES)])
    assert not (tmp_path / "kept-aside").exists()
    space.free_bytes = FILE_BYTES
    await until_async(lambda: log._supply.ready is not None)
    space.free_bytes = -1
    last = await log.append([b"four"])
    log.truncate(last.address.sequence)
    await until_async(lambda: (tmp_path / "kept-aside").exists())
    await until_async(lambda: len(list(tmp_path.glob("*.nadi"))) == 1)
    await log.close()


@in_either_thread
@pytest.mark.parametrize("damage", ["empty", "short", "sparse"])
@pytest.mark.parametrize("full", [False, True])
async def test_incomplete_reserved_file_is_recreated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, full: bool
) -> None:
    """It would fail on a full disk, its purpose; unavailable space isn't counted either."""
    size_bytes = FILE_BYTES // 2
    monkeypatch.setattr("nadi.segmentstore.tier1.writer.LOG_RESERVE_BYTES", size_bytes)
    kept = tmp_path / "kept-aside"

    async def life(free_bytes: int) -> None:
        space = Disk(monkeypatch, 1 << 30)
        log = open_log(tmp_path)
        await replayed(log)
        await log.append([b"one"])
        await until_async(lambda: log._supply.ready is not None and log._supply.reserve_bytes > 0)
        await log.close()
        os.truncate(kept, size_bytes // 2 if damage == "short" else 0)
        if damage == "sparse":
            os.truncate(kept, size_bytes)

        space.free_bytes = free_bytes
        log = open_log(tmp_path)
        await replayed(log)
        await log.settle(1)
        if full:
            await until_async(lambda: log.is_full)
            assert log.free_bytes(ALL) < 0
            assert not kept.exists()
            space.free_bytes = 1 << 30
        await until_async(lambda: log._supply.reserve_bytes > 0)
        assert kept.stat().st_blocks * 512 >= kept.stat().st_size == size_bytes
        await log.close()

    await life(-1 if full else 1 << 30)


@in_either_thread
async def test_reserved_file_is_created_where_no_other_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.tier1.writer.LOG_RESERVE_BYTES", FILE_BYTES // 2)

    Disk(monkeypatch, FILE_BYTES - 1)
    log = open_log(tmp_path)
    await replayed(log)
    await log.settle(1)
    await until_async(lambda: log.is_full)
    await until_async(lambda: log._supply.reserve_bytes > 0)
    assert log.free_bytes(NOTHING) <= 0 < log.free_bytes(ALL)
    await log.append([b"frees room"])
    await log.close()


@pytest.mark.parametrize("kind", ["spare", "prepared"])
def test_a_sparse_file_is_not_written_to(tmp_path: Path, kind: str) -> None:
    """Its first frame on a full disk would fail, although its size promised space."""
    addresses = write(tmp_path, [b"1"])
    if kind == "spare":
        sparse = tmp_path / "spare-00000001.nadi"
    else:
        (sparse,) = [path for path in tmp_path.glob("log-*.nadi") if path.name != path_of(tmp_path, addresses[0]).name]
    sparse.unlink(missing_ok=True)
    sparse.touch()
    os.truncate(sparse, FILE_BYTES)
    write(tmp_path, [bytes(FILE_BYTES // 2)] * 3, after_sequence=1)
    for path in [*tmp_path.glob("log-*.nadi"), *tmp_path.glob("spare-*.nadi")]:
        assert path.stat().st_blocks * 512 >= path.stat().st_size, path.name


def test_a_short_disk_gets_smaller_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.segmentstore.tier1.writer.LOG_FIRST_FILE_BYTES", FILE_BYTES // 4)

    async def life() -> None:
        space = Disk(monkeypatch, 1 << 30)
        log = open_log(tmp_path)
        assert await replayed(log) == []
        for _ in range(4):
            await log.append([bytes(FILE_BYTES // 8)])
        await log.settle(FILE_BYTES)
        space.free_bytes = FILE_BYTES // 2 + 1
        for _ in range(16):
            await log.append([bytes(FILE_BYTES // 8)])
        await log.close()

    asyncio.run(life())
    sizes = [len(content) for _, content in sorted(log_files(tmp_path).items())]
    assert sizes[0] == FILE_BYTES // 4
    assert sizes[-1] == FILE_BYTES // 2


def test_disk_below_the_space_reserved_for_others_counts_as_full(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    free = status.f_bavail * status.f_frsize
    spare = disk.spare_bytes(tmp_path)
    assert spare <= free
    assert free - 65 * (1 << 20) < spare


# --- the bytes of log files: golden bytes, and those of earlier versions -------


LOG_ID = bytes(range(16))
FILE_HEADER = bytes.fromhex(
    "6e6164692d6c6f67 02000000 000102030405060708090a0b0c0d0e0f 0c00000000000000 2200000000000000 0500000000000000"
    "e7b68c26 0000010000000000 44de50c4"
)
FRAME_HEADER = bytes.fromhex(
    "6e616432 18000000 2200000000000000 0500000000000000 0c00000000000000 0020000000000000"
    "08000000 79d52c5d 02000000 bce296db eb703992"
)
PAYLOAD = b"the headfirstsecond part"
TABLE = bytes.fromhex("05000000 faeda2cd 0b000000 830eb39b")


def test_golden_file_header() -> None:
    header = FileHeader(LOG_ID, 12, 34, 5, 65_536)
    assert header.encode() == FILE_HEADER.ljust(BLOCK_BYTES, b"\0")
    assert FileHeader.decode(header.encode(), Path("log")) == header


def test_golden_frame() -> None:
    log_crc, place = crc32c(LOG_ID), 8_192 + FRAME_HEADER_BYTES
    table, checksums = encode_table([b"first", b"second part"], log_crc, 12, place + 8)
    crcs = checksum_at(b"the head", log_crc, 12, place), checksum_at(table, log_crc, 12, place + 24)
    header = FrameHeader(24, 34, 5, 12, 8_192, 8, crcs[0], 2, crcs[1])
    block = bytearray(BLOCK_BYTES)
    header.encode_into(memoryview(block), log_crc)
    assert (table, checksums) == (TABLE, TABLE[4:8] + TABLE[12:])
    assert block == FRAME_HEADER.ljust(BLOCK_BYTES, b"\0")
    assert FrameHeader.decode(memoryview(block), log_crc, 12, 8_192) == header
    for number, offset in ((11, 8_192), (12, 4_096)):
        assert FrameHeader.decode(memoryview(block), log_crc, number, offset) is None


def test_every_byte_of_a_frame_is_under_a_checksum() -> None:
    whole = FRAME_HEADER + PAYLOAD + TABLE
    for at in range(len(whole)):
        frame = bytearray(whole)
        frame[at] ^= 1
        header = FrameHeader.decode(memoryview(frame), crc32c(LOG_ID), 12, 8_192)
        assert (header is None) == (at < FRAME_HEADER_BYTES)
        if header is not None:
            check = header.check(memoryview(frame), crc32c(LOG_ID))
            place = at - FRAME_HEADER_BYTES
            damaged = () if place < 8 else (0,) if place < 13 else (1,) if place < 24 else (0, 1)
            assert (check.head_is_whole, check.damaged_parts) == (place >= 8, damaged)
            assert not check.is_whole
