"""A log whose last file is gone, or says nothing any more, is not taken for a shorter one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

import nadi
from nadi.errors import CorruptLogError
from nadi.segmentstore.tier1 import fence
from nadi.segmentstore.tier1.layout import BLOCK_BYTES
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
    whole, inode = file.read_bytes(), file.stat().st_ino
    for torn in range(0, len(whole.rstrip()), 7):
        file.write_bytes(whole[:torn] + bytes([whole[torn] ^ 1]) + whole[torn + 1 :])
        assert fence.latest(tmp_path, log_id) == 0, "a wrong number would refuse a sound log"
    fence.note(tmp_path, log_id, 4)
    assert fence.latest(tmp_path, log_id) == 4
    assert (file.stat().st_ino, file.stat().st_size) == (inode, len(whole)), "a full disk has room for it"


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
