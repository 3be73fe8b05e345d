"""What a repair has back from the log where no state and no snapshot names it any more."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import lmdb
import pytest

import nadi
from nadi.client import StreamManager
from nadi.segmentstore.datafolder import container_folders
from nadi.segmentstore.repair.logged import _left, _take, extents_in
from nadi.segmentstore.repair.remains import LOST_CHUNK
from nadi.segmentstore.repair.stopped import ReadableFrame
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state.checked import TABLES
from nadi.segmentstore.state.extent_rows import singles
from nadi.segmentstore.state.records import Extent, FrameRef, Kind, SegmentRecord
from tests.cli.test_check_and_repair import command

MOVING = "chunk_flush_age_s=0.2,storage_writer_tick_s=0.05,checkpoint_interval_s=0.1,log_file_bytes=1048576"
STAYING = "chunk_flush_age_s=9999,log_file_bytes=1048576,run_least_bytes=99999999"


def write(manager: StreamManager, begin: int, end: int) -> None:
    """An event in a frame of its own, or three in one, and two transactions."""
    with manager.create_writer("s", "t") as writer:
        for number in range(begin, end):
            writer.write_event(b"%d" % number + b"." * 40, f"key-{number % 7}")
            if number % 3:
                writer.flush(60)
    with manager.create_transaction_writer("s", "t") as writer:
        for number in range(2):
            transaction = writer.begin_txn()
            for key in range(7):
                transaction.write_event(b"%d-%d in %d" % (number, key, begin), f"key-{key}")
            transaction.commit(wait=True, timeout=60)


def events(folder: Path) -> list[bytes]:
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        end = manager.stream_info("s", "t").tail
        return sorted(event.data for event in manager.read_events("s", "t", end=end))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A stopped folder: half of its events are in chunks, the log has lost its beginning, and snapshots are gone."""
    folder = tmp_path_factory.mktemp("base") / "data"
    moving, staying = {"NADI_LIMITS": MOVING}, {"NADI_LIMITS": STAYING}
    with nadi.embedded(folder, environment=moving) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 2)
        write(manager, 0, 100)
        until = time.monotonic() + 60
        while min((folder / "container-0/log").glob("log-*")).name.endswith("0001.nadi"):
            assert time.monotonic() < until, "the log keeps its first file"
            with manager.create_writer("s", "t") as writer:
                writer.write_event(b"large" * 20_000, "key").result(60)
    with nadi.embedded(folder, environment=staying) as server, StreamManager(server.controller_uri) as manager:
        write(manager, 100, 400)
    copy = Path(shutil.copytree(folder, folder.with_name("copy")))
    expected = events(copy)
    shutil.rmtree(folder / "tier2/snapshots")
    return folder, expected


def damage(folder: Path, which: Callable[[int], bool]) -> int:
    """Flip a bit in those shared rows, by their number; return how many extents they had."""
    count = 0
    for container in container_folders(folder).values():
        (container / "state/seal").unlink()
        with lmdb.open(str(container / "state"), max_dbs=len(TABLES)) as env, env.begin(write=True) as txn:
            table = env.open_db(b"extents", txn=txn)
            shared = [(bytes(key), bytes(raw)) for key, raw in txn.cursor(db=table) if raw[0] >= 128]
            for number, (key, raw) in enumerate(shared):
                if which(number):
                    txn.put(key, raw[:40] + bytes([raw[40] ^ 1]) + raw[41:], db=table)
                    count += len(list(singles([(key, raw[:-4])])))
    return count


@pytest.mark.parametrize("which", [lambda number: number == 1, lambda number: True], ids=["one", "all"])
def test_a_damaged_row_costs_nothing_that_the_log_has(
    base: tuple[Path, list[bytes]], tmp_path: Path, which: Callable[[int], bool]
) -> None:
    """There were up to 42 extents in it, of which a repair said that they were lost."""
    folder = Path(shutil.copytree(base[0], tmp_path / "data"))
    assert damage(folder, which) >= 10
    repaired = command("repair", folder, "--yes")
    assert "a server can be started" in repaired.output, repaired.output
    assert LOST_CHUNK not in repaired.output
    assert events(folder) == base[1]
    assert command("check", folder).exit_code == 0


def test_what_is_left_of_what_is_lost_stays_so() -> None:
    frame = FrameRef(9, None, 0.0)
    record = SegmentRecord(7, "s/t/0.#epoch.0", Kind.STREAM, 0, start_offset=5, length=100)
    record.extents = [
        Extent(5, 35, None, 0, LOST_CHUNK),
        Extent(40, 10, None, 0, "chunk"),
        Extent(50, 50, None, 0, LOST_CHUNK),
    ]
    _take(
        record, [Extent(0, 20, frame, 0), Extent(20, 10, frame, 0), Extent(60, 10, frame, 0), Extent(90, 10, frame, 0)]
    )
    assert [(extent.offset, extent.end, extent.chunk) for extent in record.extents] == [
        (0, 20, ""),
        (20, 30, ""),
        (30, 40, LOST_CHUNK),
        (40, 50, "chunk"),
        (50, 60, LOST_CHUNK),
        (60, 70, ""),
        (70, 90, LOST_CHUNK),
        (90, 100, ""),
    ]
    assert record.log_bytes == 50
    assert record.changed_extents[5] is None
    assert sorted(record.changed_extents) == [0, 5, 20, 30, 50, 60, 70, 90]
    assert list(_left(Extent(0, 10, None, 0, LOST_CHUNK), [Extent(0, 10, frame, 0)])) == []


class Said:
    """A frame, as far as it is looked at."""

    def __init__(self, sequence: int, *operations: op.AnyOperation) -> None:
        self.header = SimpleNamespace(sequence=sequence, number=1, offset=4_096 * sequence)
        self.check = SimpleNamespace(checksums=b"abcdefgh")
        self._head = op.encode_head(list(operations))

    def head(self) -> bytes:
        return self._head


def append(segment: int, offset: int, length: int, position: int = 0) -> op.Append:
    return op.Append(segment, offset, length, position, 1, {}, 0)


BEGUN = [
    Said(5, append(1, 100, 10), op.Create(2, "s/t/0.#epoch.0#transaction", Kind.STREAM, 0)),
    Said(6, append(1, 110, 10), append(2, 0, 30, 10)),
    Said(7, append(2, 30, 5), op.Merge(1, 2, 0), append(1, 155, 5, 5)),
]


def found(frames: list[Said], *places: tuple[int, int], last: int = 99) -> list[tuple[int, int, int, bytes]]:
    extents = extents_in(cast("list[ReadableFrame]", frames), last, {1: list(places)}).get(1, [])
    return [
        (each.offset, each.length, each.frame.sequence, each.checksums) for each in extents if each.frame is not None
    ]


def test_what_was_merged_is_found_where_it_went() -> None:
    merged = [(120, 30, 6, b"efgh"), (150, 5, 7, b"abcd")]
    assert found(BEGUN, (100, 200)) == [(100, 10, 5, b"abcd"), (110, 10, 6, b"abcd"), *merged, (155, 5, 7, b"efgh")]
    assert found(BEGUN, (115, 155)) == merged, "what is only partly lost isn't"
    assert found(BEGUN, (100, 200), last=6) == [(100, 10, 5, b"abcd"), (110, 10, 6, b"abcd")]


def test_what_was_merged_stays_lost_where_nothing_shows_where_it_went() -> None:
    """A frame is missing, in which the target, or the source, may have had more; or the source was truncated."""
    late = Said(8, *op.decode_frame(BEGUN[2].head())[0])
    assert found([*BEGUN[:2], late], (120, 155)) == []
    assert found(BEGUN[1:], (120, 155)) == []
    truncated = Said(6, append(1, 110, 10), append(2, 0, 30, 10), op.Truncate(2, 30))
    assert found([BEGUN[0], truncated, BEGUN[2]], (120, 155)) == []


def test_of_what_overlaps_nothing_is_taken() -> None:
    """Then frames aren't of one past."""
    assert found([Said(5, append(1, 100, 10)), Said(9, append(1, 105, 10))], (100, 120)) == []
