"""A container whose log or state failed: requests get an error, and it recovers."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi import limits
from nadi.client.aio import StreamManager
from nadi.client.control.controller import ControllerClient
from nadi.errors import (
    CorruptLogError,
    DamagedDataError,
    DataFolderError,
    RequestTimeoutError,
    StorageFullError,
    UnavailableError,
)
from nadi.naming import segment_name
from nadi.segmentstore.container import container
from nadi.segmentstore.container import container as container_module
from nadi.segmentstore.container.container import Container, KnownDamage
from nadi.segmentstore.state import metadata
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.operations import ChunksDropped
from nadi.segmentstore.state.records import Extent, FrameRef, SegmentKind, SegmentRecord
from nadi.segmentstore.state.stored import ContainerState, record_changes, state_change
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.log import LogAddress
from nadi.wire import commands as wire
from nadi.wire.fields import WireTableKey
from tests.support.waiting import until_async

from .harness import connect, open_store


async def break_log(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one write fail; the log that is opened next is intact."""

    async def fail(_: Any) -> Any:
        raise OSError(5, "the disk failed")

    monkeypatch.setattr(container.log, "append", fail)
    with pytest.raises(UnavailableError):
        await container.call(lambda frame: frame.emit(ChunksDropped([])))


async def answers(container: Container) -> bool:
    await asyncio.sleep(0.01)
    try:
        await container.call(lambda frame: None)
    except UnavailableError:
        return False
    return True


async def test_each_request_to_a_failed_container_gets_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path, containers=1) as (store, _):
        container = store.containers[0]
        await break_log(container, monkeypatch)
        errors = []
        for _ in range(20):
            with pytest.raises(UnavailableError) as raised:
                await container.call(lambda frame: None)
            errors.append(raised.value)
        assert len(set(map(id, errors))) == 20
        assert len({len(list(traceback.walk_tb(error.__traceback__))) for error in errors}) == 1
        assert len(set(map(str, errors))) == 1
        failure = container.failure
        assert failure is not None
        assert failure.__traceback__ is None


async def test_container_recovers_once_its_state_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_module, "REOPEN_DELAY_S", 0.01)
    refusals = iter((lmdb.DiskError("no space"), lmdb.Error("input/output error")))
    opened = lmdb.open

    def refuse_twice(*arguments: Any, **options: Any) -> Any:
        for error in refusals:
            raise error
        return opened(*arguments, **options)

    async with open_store(tmp_path, containers=1) as (store, _):
        container = store.containers[0]
        monkeypatch.setattr(lmdb, "open", refuse_twice)
        await break_log(container, monkeypatch)
        async with asyncio.timeout(60):
            while not await answers(container):
                assert not container.ended
        assert next(refusals, None) is None


async def test_container_recovers_after_any_error_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also from errors that aren't a disk's, which are logged with a traceback."""
    monkeypatch.setattr(container_module, "REOPEN_DELAY_S", 0.01)

    def fails(*_: object, **__: object) -> FileLog:
        raise RuntimeError("can't start new thread")

    async with open_store(tmp_path, containers=1) as (store, _):
        container = store.containers[0]
        await break_log(container, monkeypatch)
        with monkeypatch.context() as patches:
            patches.setattr("nadi.segmentstore.tier1.files.FileLog.open", fails)
            await until_async(lambda: "can't start new thread" in str(container.failure))
        await until_async(lambda: container.failure is None)
    report = next(record for record in caplog.records if "can't start new thread" in record.message)
    assert (report.levelname, report.exc_info is None) == ("ERROR", False)


async def test_log_found_damaged_at_reopening_refuses_requests_until_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(container_module, "REOPEN_DELAY_S", 0.01)
    opened, damaged = FileLog.open, True

    def refuse_while_damaged(*arguments: Any, **options: Any) -> Any:
        if damaged:
            raise CorruptLogError("log-1", 4096, "a frame is damaged")
        return opened(*arguments, **options)

    async with open_store(tmp_path, containers=1) as (store, _):
        container = store.containers[0]
        monkeypatch.setattr(FileLog, "open", refuse_while_damaged)
        await break_log(container, monkeypatch)
        async with asyncio.timeout(60):
            while not await answers(container) and "a frame is damaged" not in str(container.failure):
                pass
        with pytest.raises(UnavailableError, match="a frame is damaged"):
            await container.call(lambda frame: None)
        await asyncio.sleep(0.1)  # ten more attempts
        assert not container.ended
        damaged = False
        async with asyncio.timeout(60):
            while not await answers(container):
                pass
    assert sum("a frame is damaged" in record.message for record in caplog.records) == 1


async def test_unwritable_state_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    async with open_store(tmp_path, containers=1) as (store, _):
        container = store.containers[0]
        monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.01)
        monkeypatch.setattr(container.metadata, "commit", fail)
        async with asyncio.timeout(60):
            while container.failure is None:
                with contextlib.suppress(UnavailableError):
                    await container.call(lambda frame: frame.emit(ChunksDropped([])))
        assert type(container.failure) is UnavailableError
        assert "mdb_txn_commit" in str(container.failure)


def test_state_on_a_full_disk_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise lmdb.DiskError("No space left on device")

    monkeypatch.setattr(lmdb, "open", refuse)
    with pytest.raises(StorageFullError) as raised:
        metadata.ContainerMetadata(tmp_path / "state")
    assert str(tmp_path / "state") in str(raised.value)


# --- an unreadable state: requests get no wrong answers, and end in time ---------------------------------


pytestmark = pytest.mark.uvloop

SEGMENT, TABLE = segment_name("sc", "st", 0), segment_name("sc", "table_kvtable", 0)


class _Direct(ControllerClient):
    """Knows only one store."""

    store: tuple[str, int]

    async def segment_endpoint(self, segment: str) -> tuple[str, int]:
        return self.store


async def test_state_that_cannot_be_read_ends_requests_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DataFolderError("a record of it is damaged")

    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(SEGMENT)
        await peer.ask(wire.CreateTableSegment(1, TABLE, ""))
    async with open_store(tmp_path, 1) as (store, _):
        address = await store.listen("127.0.0.1", 0)
        monkeypatch.setattr(ContainerMetadata, "_get", refuse)
        for command in (
            wire.ReadTable(2, TABLE, "", (WireTableKey(b"k"),)),
            wire.ReadSegment(SEGMENT, 0, 100, "", 3),
            wire.GetStreamSegmentInfo(4, SEGMENT, ""),
        ):
            peer = await connect(address)
            peer.send(command)
            assert await peer.closed(), command
            with pytest.raises(UnavailableError, match="a record of it is damaged"):
                await store.exchange(command)
        controller = _Direct("nowhere:1", timeout_s=0.3)
        controller.store = address
        async with StreamManager(controller=controller) as manager:
            begun = time.monotonic()
            with pytest.raises(RequestTimeoutError):
                await manager.table("sc", "table").get(b"k")
            with pytest.raises(RequestTimeoutError):
                [block async for block in manager.read_segment_range(SEGMENT, 0, 100)]
            assert time.monotonic() - begun < 20
        monkeypatch.undo()
        await asyncio.sleep(0)


# --- after a recovery the log is released only up to the oldest frame still needed -----------------------


def test_frames_are_in_order_whatever_segments_they_hold(tmp_path: Path) -> None:
    frames = {n: FrameRef(n, LogAddress(n, 1, 4096 * n), 0.0) for n in (5, 7, 9)}
    metadata = ContainerMetadata(tmp_path)
    changes = [state_change(ContainerState(sequence=9, next_segment=3))]
    extents = []
    for segment, numbers in ((1, (5, 9)), (2, (7,))):
        record = SegmentRecord(segment, f"scope/stream/{segment}", SegmentKind.STREAM, 0)
        for number in numbers:
            record.extents.append(Extent(record.length, 10, frames[number], 0))
            record.changed_extents[record.length] = record.extents[-1]
            record.length += 10
            record.log_bytes += 10
        changes += record_changes(record)
        extents.append((segment, record.changed_extents, 0))
    metadata.commit(changes, extents=extents)

    state = StateMachine(metadata, 0.0)

    assert list(state.frames) == [5, 7, 9]
    assert [frame.live_bytes for frame in state.frames.values()] == [10, 10, 10]
    assert [record.log_bytes for record in state.record_cache.all()] == [20, 10]
    metadata.close()


def test_a_segment_is_listed_as_logged_until_a_checkpoint_without_its_bytes(tmp_path: Path) -> None:
    metadata = ContainerMetadata(tmp_path)
    state = StateMachine(metadata, 0.0)
    record = SegmentRecord(1, "s/t/0.#epoch.0", SegmentKind.STREAM, 0)
    state.record_cache.add(record)

    def logged(log_bytes: int, *, is_written: bool = True) -> tuple[bool, list[int]]:
        """Return whether a checkpoint lists the segment, or removes it from the list, and the list afterwards."""
        record.log_bytes = log_bytes
        state.mark(record)
        checkpoint = state.checkpoint()
        if is_written:
            metadata.commit(*checkpoint.to_commit())
            state.checkpointed(checkpoint)
        else:
            state.not_written(checkpoint)
        return any(table == "logged" for table, _, _ in checkpoint.changes), metadata.logged()

    assert logged(10, is_written=False) == (True, [])
    assert logged(20) == (True, [1])
    assert logged(30) == (False, [1])
    assert logged(0, is_written=False) == (True, [1])
    assert logged(0) == (True, [])
    assert logged(0) == (False, [])
    metadata.close()


# --- the list of damaged ranges: adjacent ones with one reason are merged, and none is lost --------------


S = "s/t/0.#epoch.0"


def listed(*noted: tuple[int, int, str]) -> list[tuple[int, int, str]]:
    known = KnownDamage(0)
    for begin, end, reason in noted:
        known.note(DamagedDataError(S, begin, end, reason))
    return sorted((damage.offset, damage.end_offset, damage.reason) for damage in known.all())


def test_adjacent_damages_keep_their_reasons() -> None:
    assert listed((0, 10, "a"), (10, 20, "b")) == [(0, 10, "a"), (10, 20, "b")]
    assert listed((10, 20, "b"), (0, 10, "a")) == [(0, 10, "a"), (10, 20, "b")]
    assert listed((0, 10, "a"), (20, 30, "b"), (10, 20, "b")) == [(0, 10, "a"), (10, 30, "b")]
    assert listed((0, 10, "a"), (2, 8, "b")) == [(0, 10, "a")], "it is known already"


def test_known_damage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    listed((0, 10, "a"), (0, 10, "a"), (2, 3, "b"), (10, 12, "b"))
    assert len(caplog.records) == 2


def test_damages_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "DAMAGE_LISTED", 2)
    known = KnownDamage(0)
    for begin, reason in ((0, "a"), (10, "b"), (20, "c"), (20, "c"), (20, "b")):
        known.note(DamagedDataError(S, begin, begin + 10, reason))
    assert len(known.all()) == 2
    assert sum(damage.end_offset - damage.offset for damage in known.all()) == 30
    assert known.unlisted == 2


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10), st.sampled_from("abc")), max_size=12))
def test_every_byte_that_was_noted_is_listed(noted: list[tuple[int, int, str]]) -> None:
    listed_bytes = {at for begin, size, _ in noted for at in range(begin, begin + size)}
    found = listed(*((begin, begin + size, reason) for begin, size, reason in noted))
    assert {at for begin, end, _ in found for at in range(begin, end)} == listed_bytes
    for reason in "abc":
        places = [place for place in found if place[2] == reason]
        assert all(one[1] < other[0] for one, other in pairwise(places)), "adjacent places are merged"
