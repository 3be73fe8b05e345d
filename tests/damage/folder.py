"""A stopped server's folder with data of every kind, and the ledger of its acknowledged contents.

Half of the events are in chunks and half in the log; the stream was split and merged, transactions were committed, a
table has entries in the state and newer ones in the log. `killed`: the server took no last checkpoint, so the latest
data is in the log only. The last frame of a killed server's log, if damaged, is indistinguishable from a torn write; it
has events of a separate stream, LAST, whose loss is allowed.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path

import nadi
from nadi.client import StreamManager

SCOPE = "damage"
STREAM = "events"
STEADY = "steady"
LAST = "last"
TABLE = "table"
KEYS = 8

# small, for several chunks and log files, and little memory
_FIRST = (
    "chunk_flush_age_s=0.3,chunk_flush_bytes=65536,log_file_bytes=1048576,cache_max_bytes=4194304,"
    "storage_writer_tick_s=0.05,checkpoint_interval_s=0.2,snapshot_interval_s=0.3,state_map_bytes=4194304,"
    "run_least_bytes=4096,run_file_bytes=131072,run_carry_bytes=8192"
)
_SECOND = (
    "chunk_flush_age_s=9999,chunk_flush_bytes=99999999,log_file_bytes=1048576,cache_max_bytes=4194304,"
    "state_map_bytes=4194304,run_least_bytes=4096,run_file_bytes=131072,run_carry_bytes=8192"
)
_NO_CHECKPOINT = ",checkpoint_interval_s=3600"
READING = "cache_max_bytes=4194304,chunk_flush_age_s=9999,chunk_flush_bytes=99999999,state_map_bytes=4194304"


@dataclass(slots=True)
class Ledger:
    """The expected contents: events as (segment id, offset, data) of each stream, and the table's values."""

    streams: dict[str, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    table: dict[bytes, bytes] = field(default_factory=dict)


def event(stream: str, number: int) -> bytes:
    """Return a unique event, long enough to be a likely target of flipped bits."""
    return f"{stream}:{number}:{hashlib.sha256(b'%d' % number).hexdigest() * 6}".encode()


def key_of(event: bytes) -> int:
    """Return the key under which `event` was written, by its number."""
    return int(event.split(b":")[1]) % KEYS


def table_value(number: int) -> bytes:
    return f"{number}:{hashlib.sha256(b'%d' % number).hexdigest() * 2}".encode()


def make(folder: Path, *, killed: bool, events: int = 3_000) -> Ledger:
    """Create a stopped folder and its ledger, which is also stored next to it."""
    ledger = Ledger()
    server = nadi.embedded(folder, environment={"NADI_LIMITS": _FIRST})
    with StreamManager(server.controller_uri) as manager:
        manager.create_scope(SCOPE)
        for stream, segments in ((STREAM, 2), (STEADY, 1), (LAST, 1)):
            manager.create_stream(SCOPE, stream, segments)
        _write(manager, STREAM, 0, events // 3)
        _write(manager, STEADY, 0, events // 3)
        segments_now = manager.current_segments(SCOPE, STREAM)
        ranges = [(0.0, 0.3), (0.3, 0.8), (0.8, 1.0)]
        manager.scale_stream(SCOPE, STREAM, [segment.segment_id for segment in segments_now], ranges)
        _write(manager, STREAM, events // 3, events // 2)
        with manager.create_transaction_writer(SCOPE, STREAM) as writer:
            for number in range(events, events + 5):
                transaction = writer.begin_txn()
                transaction.write_event(event(STREAM, number), f"key-{number % KEYS}")
                transaction.commit(wait=True, timeout=60)
        time.sleep(1.5)  # everything moves to tier 2
        table = manager.table(SCOPE, TABLE)
        table.create()
        for number in range(200):
            table.put(b"key-%d" % number, table_value(number))
    server.stop()
    server = nadi.embedded(folder, environment={"NADI_LIMITS": _SECOND + (_NO_CHECKPOINT if killed else "")})
    try:
        with StreamManager(server.controller_uri) as manager:
            _write(manager, STREAM, events // 2, events)
            _write(manager, STEADY, events // 3, events // 2)
            table = manager.table(SCOPE, TABLE)
            for number in range(150, 300):
                table.put(b"key-%d" % number, table_value(number + 1_000))
            _write(manager, LAST, 0, 10)
            for stream in (STREAM, STEADY, LAST):
                tail = manager.stream_info(SCOPE, stream).tail
                ledger.streams[stream] = [
                    (found.segment_id, found.offset, found.data)
                    for found in manager.read_events(SCOPE, stream, end=tail)
                ]
            for number in range(300):
                key = b"key-%d" % number
                ledger.table[key] = table_value(number if number < 150 else number + 1_000)
            with manager.create_writer(SCOPE, LAST) as writer:
                writer.write_event(b"the last frame", "key").result(60)
        assert sorted(data for _, _, data in ledger.streams[STREAM]) == sorted(
            event(STREAM, number) for number in range(events + 5)
        )
    finally:
        if killed:
            server.kill()
        else:
            server.stop()
    folder.with_suffix(".ledger").write_bytes(pickle.dumps(ledger))
    return ledger


def _write(manager: StreamManager, stream: str, start: int, end: int) -> None:
    with manager.create_writer(SCOPE, stream) as writer:
        for number in range(start, end):
            writer.write_event(event(stream, number), f"key-{number % KEYS}")
            if number % 100 == 99:
                writer.flush(60)  # many frames, not one
        writer.flush(60)
