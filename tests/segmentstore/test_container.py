"""A container whose log or state failed: who asks meanwhile is told, and it recovers."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from pathlib import Path
from typing import Any

import lmdb
import pytest

from nadi import limits
from nadi.errors import CorruptLogError, StorageFullError, UnavailableError
from nadi.segmentstore.container import container as container_module
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.state import metadata
from nadi.segmentstore.state.operations import ChunksDropped
from nadi.segmentstore.tier1.files import FileLog
from tests.segmentstore.harness import open_store
from tests.support.waiting import until_async


async def break_log(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one write fail; the log that is opened then is whole."""

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


async def test_it_recovers_once_its_state_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_it_recovers_whatever_kept_it_from_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what is no error of a disk, which is told in full."""
    monkeypatch.setattr(container_module, "REOPEN_DELAY_S", 0.01)

    def fails(*_: object, **__: object) -> FileLog:
        raise RuntimeError("can't start new thread")

    async with open_store(tmp_path, containers=1) as (store, _):
        container = store.containers[0]
        await break_log(container, monkeypatch)
        with monkeypatch.context() as patches:
            patches.setattr("nadi.segmentstore.tier1.files.FileLog.open", fails)
            await until_async(lambda: "again yet: can't start new thread" in str(container.failure))
        await until_async(lambda: container.failure is None)
    (told,) = [record for record in caplog.records if "can't be opened again" in record.message]
    assert (told.levelname, told.exc_info is None) == ("ERROR", False)


async def test_a_log_found_damaged_while_it_is_reopened_is_told_until_it_is_mended(
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
        await asyncio.sleep(0.1)  # ten more tries
        assert not container.ended
        damaged = False
        async with asyncio.timeout(60):
            while not await answers(container):
                pass
    assert sum("a frame is damaged" in record.message for record in caplog.records) == 1


async def test_a_state_that_can_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert "the state could not be written" in str(container.failure)


def test_a_state_that_has_no_room_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise lmdb.DiskError("No space left on device")

    monkeypatch.setattr(lmdb, "open", refuse)
    with pytest.raises(StorageFullError, match="free space") as raised:
        metadata.Metadata(tmp_path / "state")
    assert str(tmp_path / "state") in str(raised.value)
