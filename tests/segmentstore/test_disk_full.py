"""A full disk: writers wait and get errors, no acknowledged write is lost, and writing resumes once there is space."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.client import Ack, EventRead, EventWriter, KeyValueTableConfiguration
from nadi.errors import ClosedError, NadiError, StorageFullError, UnavailableError
from nadi.segmentstore.tier2.chunks import ChunkStore
from tests.support.small_disk import small_disk
from tests.support.waiting import until

T = TypeVar("T")
DISK_MB = 64
BALLAST_MB = 24
EVENT_BYTES = 20_000
PAGE_BYTES = 4096  # the unit of tmpfs


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk with a ballast file that can be deleted to free space."""
    with small_disk(tmp_path / "disk", DISK_MB) as folder:
        (folder / "ballast").write_bytes(bytes(BALLAST_MB << 20))
        yield folder


def event(number: int) -> bytes:
    return b"%08d" % number + bytes(EVENT_BYTES - 8)


def write_until_full(writer: EventWriter, written: int) -> tuple[list[int], int, NadiError]:
    """Write events until one fails; return the acknowledged numbers, the number written, and the error."""
    acknowledged: list[int] = []
    while True:
        acks: list[tuple[int, Ack]] = []
        for _ in range(10):
            acks.append((written, writer.write_event(event(written), "key")))
            written += 1
        failure = None
        for number, ack in acks:
            try:
                ack.result(60)
                acknowledged.append(number)
            except NadiError as error:
                failure = error
        if failure is not None:
            return acknowledged, written, failure
        assert written * EVENT_BYTES < DISK_MB << 20, "the disk took more than its size"


def write_when_there_is_room(writer: EventWriter, written: int) -> tuple[int, int]:
    """Write until an event is acknowledged; return its number, and the number written."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ack = writer.write_event(event(written), "key")
        written += 1
        try:
            ack.result(60)
        except StorageFullError:
            continue
        return written - 1, written
    raise AssertionError("no event was taken for a minute after room was made")


def read_numbers(manager: nadi.StreamManager) -> list[int]:
    tail = manager.stream_info("s", "t").tail
    return [int(found.data[:8]) for found in manager.read_events("s", "t", end=tail)]


def check(numbers: list[int], acknowledged: list[int]) -> None:
    assert numbers == sorted(set(numbers)), "duplicates, or out of order"
    assert set(acknowledged) <= set(numbers), "an acknowledged event is lost"


@pytest.mark.crash
def test_writing_resumes_once_a_full_disk_has_space(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=1048576,chunk_flush_age_s=0.5,checkpoint_interval_s=0.2")
    server = nadi.embedded(disk / "data", containers=1)
    try:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("s")
            manager.create_stream("s", "t", 1)
            writer = manager.create_writer("s", "t", ack_timeout=8)
            acknowledged, written, failure = write_until_full(writer, 0)
            assert isinstance(failure, StorageFullError), repr(failure)
            assert acknowledged, "the disk was full at once"

            (disk / "ballast").unlink()
            taken, written = write_when_there_is_room(writer, written)
            acknowledged.append(taken)
            check(read_numbers(manager), acknowledged)

            more, written, failure = write_until_full(writer, written)
            assert isinstance(failure, StorageFullError), repr(failure)
            acknowledged += more
            check(read_numbers(manager), acknowledged)
    finally:
        server.kill()

    # Killed while the disk is full: with more space, everything is readable.
    subprocess.run(["mount", "-o", f"remount,size={2 * DISK_MB}m", str(disk)], check=True, timeout=20)
    with nadi.embedded(disk / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        check(read_numbers(manager), acknowledged)
        with manager.create_writer("s", "t") as writer:
            writer.write_event(event(written), "key").result(60)
        check(read_numbers(manager), [*acknowledged, written])


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of the call, which must finish within that time."""
    began = time.monotonic()
    try:
        return call()
    finally:
        took = time.monotonic() - began
        assert took < seconds, f"it took {took:.1f} s"


def fill_the_rest(table: nadi.client.KeyValueTable) -> None:
    """Fill the space that is too small for a writer's events with smaller ones."""
    for size in (5_000, 10):
        with contextlib.suppress(StorageFullError):
            for _ in range(100):
                within(20, partial(table.put, b"k", bytes(size)))
            raise AssertionError("there is still room")


def next_event(reader: Any) -> bytes | None:
    found = within(20, lambda: reader.read_next_event(15))
    assert isinstance(found, EventRead)
    return found.event


class Waiting:
    """A thread that writes numbered events, one at a time, waiting while the disk is full."""

    def __init__(self, manager: nadi.StreamManager, written: int) -> None:
        self._writer = manager.create_writer("s", "t", ack_timeout=120)
        self.acknowledged: list[int] = []
        self.written = written
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(ClosedError):
            while not self._stop.is_set():
                number, self.written = self.written, self.written + 1
                self._writer.write_event(event(number), "key").result(120)
                self.acknowledged.append(number)

    def until_still(self) -> None:
        """Wait until the server has refused several appends in a row for lack of space."""
        taken, refusals = 0, list[NadiError]()

        def is_still() -> bool:
            nonlocal taken
            if len(self.acknowledged) != taken:
                taken = len(self.acknowledged)
                refusals.clear()
            trouble = self._writer._core._sender._trouble()
            if isinstance(trouble, StorageFullError) and trouble not in refusals:
                refusals.append(trouble)
            return taken > 0 and len(refusals) > 6  # one per quarter of a second

        until(is_still)

    def until_it_goes_on(self) -> float:
        """Wait until an event is acknowledged; return the seconds."""
        began, before = time.monotonic(), len(self.acknowledged)
        while len(self.acknowledged) == before:
            assert time.monotonic() - began < 60, "no event was accepted for a minute after space was freed"
            time.sleep(0.01)
        return time.monotonic() - began

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


@pytest.mark.crash
def test_full_disk_serves_reads_and_refuses_writes_with_an_error(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=2097152,chunk_flush_age_s=0.5,checkpoint_interval_s=0.2")
    with nadi.embedded(disk / "data", containers=1) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        manager.create_stream("s", "old", 1)
        manager.create_writer("s", "old").write_event(b"old", "key").result(60)
        groups = manager.reader_group_manager("s")
        groups.create_reader_group("g", ["old"])
        reader = groups.get_reader_group("g").create_reader("r")
        config = KeyValueTableConfiguration(partitions=1, primary_key_bytes=1)
        manager.create_key_value_table("s", "kv", config)
        table = manager.key_value_table("s", "kv")
        table.put(b"k", b"1")
        manager.create_stream("s", "map", 1)
        state = manager.shared_map("s", "map")
        transactions = manager.create_transaction_writer("s", "old")
        open_transaction = transactions.begin_txn()
        waiting = Waiting(manager, 0)
        waiting.until_still()

        took_s = []
        for _ in range(10):
            began = time.monotonic()
            assert len(read_numbers(manager)) >= len(waiting.acknowledged)
            took_s.append(time.monotonic() - began)
        said = "reading the whole stream takes 0.1 s; it stood still for 1 s and more at each try to write"
        assert sorted(took_s)[5] < 2, said
        found = within(20, lambda: reader.read_next_event(15))
        assert isinstance(found, EventRead)
        assert found.event is not None
        assert found.event == b"old"

        fill_the_rest(table)
        for refused in (
            lambda: manager.create_scope("another"),
            lambda: manager.create_stream("s", "new", 1),
            lambda: manager.scale_stream("s", "old", [0], [(0.0, 0.5), (0.5, 1.0)]),
            lambda: groups.create_reader_group("g2", ["old"]),
            lambda: transactions.begin_txn(),
            lambda: table.put(b"n", bytes(100_000)),
            lambda: state.put("k", "v" * 100_000),
            lambda: manager.create_key_value_table("s", "kv2", config),
        ):
            with pytest.raises(StorageFullError):
                within(20, refused)
        within(20, open_transaction.abort)
        assert table.get(b"k") is not None
        assert "new" not in manager.list_streams("s"), "a refused request isn't executed later"

        (disk / "ballast").unlink()
        assert waiting.until_it_goes_on() < 30
        within(20, lambda: manager.create_stream("s", "new", 1))
        within(20, lambda: state.put("k", "v" * 100_000))
        waiting.stop()
        check(read_numbers(manager), waiting.acknowledged)


@pytest.mark.crash
def test_reader_group_continues_when_its_share_of_the_reserve_is_used_up(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state and conditional updates of tables share the reserve with operations that free space.

    No checkpoint runs meanwhile: it would release the log and free space.
    """
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=2097152,chunk_flush_age_s=0.5,checkpoint_interval_s=600")
    with nadi.embedded(disk / "data", containers=1) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        manager.create_stream("s", "old", 1)
        with manager.create_writer("s", "old") as writer:
            for number in range(50):
                writer.write_event(b"%d" % number, "key")
        groups = manager.reader_group_manager("s")
        groups.create_reader_group("g", ["old"])
        group = groups.get_reader_group("g")
        reader = group.create_reader("r")
        assert next_event(reader) == b"0"
        config = KeyValueTableConfiguration(partitions=1, primary_key_bytes=1)
        manager.create_key_value_table("s", "kv", config)
        table = manager.key_value_table("s", "kv")
        version = table.put(b"k", b"0")
        waiting = Waiting(manager, 0)
        waiting.until_still()

        updates = 0
        try:
            while updates < 5_000:
                put = partial(table.put, b"k", b"%d" % updates, version)
                version = within(20, put)
                updates += 1
        except StorageFullError:
            pass
        assert 20 < updates < 5_000, f"{updates} updates: the reserve is limited"
        for number in range(1, 25):
            assert next_event(reader) == b"%d" % number
        with pytest.raises(StorageFullError):
            within(20, lambda: group.create_reader("late"))
        within(20, lambda: manager.truncate_stream(manager.stream_info("s", "old").head))  # has its own reserve

        (disk / "ballast").unlink()
        assert waiting.until_it_goes_on() < 30
        late = within(20, lambda: group.create_reader("late"))
        for number in range(25, 50):
            assert next_event(reader) == b"%d" % number
        late.close()
        waiting.stop()


@pytest.mark.crash
def test_operations_that_free_space_work_on_an_entirely_full_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncation and deletion succeed on a disk filled by others, and then writing resumes."""
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=2097152,chunk_flush_age_s=0.2,checkpoint_interval_s=0.2")
    with nadi.embedded(disk / "data", containers=1) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        for stream in ("t", "u"):
            manager.create_stream("s", stream, 1)
        with manager.create_writer("s", "u") as writer:
            writer.write_event(event(0), "key")
        waiting = Waiting(manager, 0)
        waiting.until_still()
        fill(disk, 0)
        cut = manager.stream_info("s", "t").tail
        within(20, lambda: manager.seal_stream("s", "u"))
        within(20, lambda: manager.delete_stream("s", "u"))
        before = len(waiting.acknowledged)
        within(20, lambda: manager.truncate_stream(cut))
        assert waiting.until_it_goes_on() < 45  # space is free once the log and the chunks are deleted
        waiting.stop()
        check(read_numbers(manager), waiting.acknowledged[before + 1 :])

    with nadi.embedded(disk / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        check(read_numbers(manager), waiting.acknowledged[before + 1 :])
        assert manager.list_streams("s") == ["t"]


@pytest.mark.crash
def test_space_can_be_freed_after_a_start_on_an_entirely_full_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's reserved file exists: nothing is moved to tier 2, which would use it."""
    limits = "log_file_bytes=2097152,checkpoint_interval_s=0.2,chunk_flush_age_s=600,chunk_flush_bytes=1000000000"
    monkeypatch.setenv("NADI_LIMITS", limits)
    server = nadi.embedded(disk / "data", containers=1)
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        waiting = Waiting(manager, 0)
        waiting.until_still()
        server.kill()
    assert (disk / "data/container-0/log/kept-aside").exists()
    fill(disk, 0)
    with nadi.embedded(disk / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        numbers = read_numbers(manager)
        check(numbers, waiting.acknowledged)
        within(20, lambda: manager.truncate_stream(manager.stream_info("s", "t").tail))
        with manager.create_writer("s", "t", ack_timeout=60) as writer:
            writer.write_event(event(waiting.written), "key").result(60)
        assert read_numbers(manager) == [waiting.written]


def write_endlessly(file: RawIOBase, size: int) -> None:
    while True:
        file.write(bytes(size))


def fill(disk: Path, pages: int) -> None:
    """Leave space for `pages` pages."""
    with (disk / "ballast").open("r+b", buffering=0) as ballast:
        ballast.seek(0, os.SEEK_END)
        for size in (1 << 20, PAGE_BYTES):
            with pytest.raises(OSError) as full:  # noqa: PT011
                write_endlessly(ballast, size)
            assert full.value.errno == errno.ENOSPC
        ballast.truncate((ballast.tell() // PAGE_BYTES - pages) * PAGE_BYTES)


@pytest.mark.crash
@pytest.mark.parametrize(
    "pages", [pytest.param(n, marks=[] if n in (0, 1, 4, 9) else pytest.mark.slow) for n in range(14)]
)
def test_start_on_a_full_disk_fails_without_partial_files(
    disk: Path, pages: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=1048576")
    fill(disk, pages)
    with pytest.raises(UnavailableError) as raised:
        nadi.embedded(disk / "data", containers=1)
    assert str(disk / "data") in str(raised.value)
    # LMDB reports EIO if part of a write fits; other errors say that the disk is full
    assert isinstance(raised.value, StorageFullError) or "Input/output error" in str(raised.value)
    assert "Traceback" not in capfd.readouterr().err

    (disk / "ballast").unlink()
    with nadi.embedded(disk / "data", containers=1) as server, nadi.StreamManager(server.controller_uri) as manager:
        assert manager.create_scope("s")


@pytest.mark.crash
@pytest.mark.parametrize(("pages", "has_snapshot"), [(0, False), (0, True), (3, True)])
def test_a_state_is_restored_on_a_full_disk(
    disk: Path, pages: int, has_snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the space of the killed server's state, and the reserve."""
    quick = ",checkpoint_interval_s=0.1,snapshot_interval_s=0.1" if has_snapshot else ""
    monkeypatch.setenv("NADI_LIMITS", f"log_file_bytes=1048576{quick}")
    with nadi.embedded(disk / "data", containers=1) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        manager.create_writer("s", "t").write_event(event(1), "key").result(60)
        if has_snapshot:
            until(lambda: any(b"/base-" in path.read_bytes() for path in disk.glob("data/tier2/containers/0")))
        server.kill()
    for _ in range(2):  # and the reserve exists for the next start
        fill(disk, pages)
        with nadi.embedded(disk / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
            assert read_numbers(manager) == [1]
            server.kill()


@pytest.mark.crash
@pytest.mark.parametrize("pages", [0, 13, 60])
def test_a_repair_on_a_full_disk(disk: Path, pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails without changing anything in use, and the next repair succeeds."""
    monkeypatch.setenv("NADI_LIMITS", "log_file_bytes=1048576,checkpoint_interval_s=3600,chunk_flush_age_s=3600")
    with nadi.embedded(disk / "data", containers=1) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        with manager.create_writer("s", "t") as writer:
            for number in range(9):
                writer.write_event(event(number), "key").result(60)
        server.kill()
    container = disk / "data/container-0"
    log = next(path for path in container.glob("log/log-*.nadi") if b"%08d" % 4 in path.read_bytes())
    with log.open("r+b") as stream:
        at = log.read_bytes().index(b"%08d" % 4) // PAGE_BYTES * PAGE_BYTES
        stream.seek(at)
        stream.write(bytes(PAGE_BYTES))
    fill(disk, pages)
    before = {path: path.read_bytes() for path in disk.glob("data/*/log/log-*")}
    before |= {path: path.read_bytes() for path in disk.glob("data/tier2/containers/*")}
    result = CliRunner().invoke(app, ["repair", str(disk / "data"), "--yes"])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit), result.exception
    assert str(disk / "data") in "".join(result.output.split()), result.output
    assert {path: path.read_bytes() for path in before} == before
    (disk / "ballast").unlink()
    result = CliRunner().invoke(app, ["repair", str(disk / "data"), "--yes"])
    assert result.exit_code == 1, result.output  # an acknowledged event is lost
    with nadi.embedded(disk / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        tail = manager.stream_info("s", "t").tail
        found = [int(read.data[:8]) for read in manager.read_events("s", "t", end=tail, on_damage="skip")]
    assert found == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.crash
def test_full_tier_2_raises_a_one_line_error(disk: Path) -> None:
    chunks = ChunkStore.in_folder(disk / "tier2")
    fill(disk, 1)
    with pytest.raises(StorageFullError) as raised:
        asyncio.run(chunks.put("container-0/x", [bytes(1 << 20)]))
    assert "\n" not in str(raised.value)
    assert "{" not in str(raised.value)


@pytest.mark.crash
def test_up_on_a_full_disk_exits_with_an_error(disk: Path) -> None:
    fill(disk, 0)
    result = CliRunner().invoke(app, ["up", "--data", str(disk / "data"), "--port", "0"])
    assert result.exit_code == 1
    assert str(disk / "data") in "".join(result.output.split())
