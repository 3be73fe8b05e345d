"""A log whose last file is gone, or says nothing any more, is not taken for a shorter one."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi import limits
from nadi.errors import CorruptLogError
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.recovery.localparts import LocalParts
from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.state.operations import Create
from nadi.segmentstore.state.records import Kind
from nadi.segmentstore.tier1 import fence, writer
from nadi.segmentstore.tier1.layout import BLOCK_BYTES
from nadi.segmentstore.tier1.writer import FrameWriter
from nadi.segmentstore.tier2.chunks import ChunkStore
from tests.segmentstore.tier1.test_files import frames, read, write


def removed(file: Path) -> None:
    file.unlink()


def zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def begins_with_zeros(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.write(bytes(2 * BLOCK_BYTES))


@pytest.mark.parametrize("spoil", [removed, zeroed, emptied, begins_with_zeros])
def test_what_was_acknowledged_after_a_clean_stop_is_not_lost_unsaid(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """Written after the stop, and killed before the first checkpoint: the state says nothing of it."""
    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        with manager.create_writer("s", "t") as writer:
            writer.write_event(b"before", "key").result(60)
    server = nadi.embedded(tmp_path, environment={"NADI_LIMITS": "checkpoint_interval_s=3600"})
    with nadi.StreamManager(server.controller_uri) as manager, manager.create_writer("s", "t") as writer:
        writer.write_event(b"after", "key").result(60)
        server.kill()
    log = tmp_path / "container-0/log"
    used = [file for file in sorted(log.glob("log-*.nadi")) if file.read_bytes()[:8] == b"nadi-log"]
    spoil(used[-1])
    with pytest.raises(nadi.NadiError, match=used[-1].name):
        nadi.embedded(tmp_path)


def test_a_log_knows_its_last_file(tmp_path: Path) -> None:
    log_id, other = secrets.token_bytes(16), secrets.token_bytes(16)
    assert fence.latest(tmp_path, log_id) == 0
    for number in (1, 2, 3, 2):  # again 2: after a repair the numbers may begin below
        fence.note(tmp_path, log_id, number)
        assert fence.latest(tmp_path, log_id) == number
        assert fence.latest(tmp_path, other) == 0, "that of another log says nothing"
    file = tmp_path / fence.LATEST_FILE
    assert file.stat().st_size == 1024
    whole, inode = file.read_bytes(), file.stat().st_ino
    for torn in range(0, 1024, 7):
        file.write_bytes(whole[:torn] + bytes([whole[torn] ^ 1]) + whole[torn + 1 :])
        assert fence.latest(tmp_path, log_id) in (2, 3), "the other place holds"
    fence.note(tmp_path, log_id, 4)
    assert (file.stat().st_ino, file.stat().st_size) == (inode, 1024), "a full disk has room for it"


def test_a_log_whose_last_file_is_missing_is_refused(tmp_path: Path) -> None:
    for _ in range(2):
        write(tmp_path, frames(30))  # some files, by an owner each
    last = [path for path in sorted(tmp_path.glob("log-*.nadi")) if path.read_bytes()[:8] == b"nadi-log"][-1]
    for path in sorted(tmp_path.glob("log-*.nadi")):
        if path >= last:
            path.unlink()
    with pytest.raises(CorruptLogError, match="the last in use") as refused:
        read(tmp_path)
    assert Path(refused.value.file) == last


def test_a_start_without_the_last_file_can_be_killed_at_any_step_of_its_first_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seal says that nothing of the log is needed; it was broken before the log had a new file that says as much.

    The folder is copied before and after each step that changes it: as a kill would leave it."""
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 3600.0)
    folder = tmp_path / "data"
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
    log = folder / "container-0/log"
    [file for file in sorted(log.glob("log-*.nadi")) if file.read_bytes()[:8] == b"nadi-log"][-1].unlink()
    copies: list[Path] = []

    def watch(owner: object, name: str) -> None:
        step = getattr(owner, name)

        def watched(*arguments: Any) -> Any:
            for when in ("before", "after"):
                copy = tmp_path / f"{len(copies)} {when} {name}"
                copies.append(shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("new-log-*")))  # being made
                if when == "before":
                    result = step(*arguments)
            return result

        monkeypatch.setattr(owner, name, watched)

    async def started(copy: Path) -> Container:
        container = Container(LocalParts(0, copy / "container-0", ChunkStore.in_folder(copy / "tier2")), BlockCache())
        await container.start()
        return container

    async def append() -> None:
        container = await started(folder)
        watch(statecheck, "unseal")
        watch(writer, "note")
        watch(FrameWriter, "write")
        watch(FrameWriter, "_next_file")
        await container.call(lambda frame: frame.emit(Create(container.state.next_segment, "new", Kind.STREAM, 1)))
        monkeypatch.undo()
        await container.stop()

    async def start(copy: Path) -> None:
        await (await started(copy)).stop()

    asyncio.run(append())
    assert len(copies) == 8
    for copy in copies:
        asyncio.run(start(copy))
