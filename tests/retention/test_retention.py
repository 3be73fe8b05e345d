"""Retention on a real server, while a writer writes, readers are slow, and bookmarks exist."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import nadi
from nadi.client import RetentionPolicy, ScalingPolicy, StreamDataRetention, StreamManager
from nadi.errors import InvalidArgumentError
from nadi.model.streamcut import StreamCut
from nadi.testing.server import RestartableServer
from tests.support.waiting import until

from .load import MIB, Load, Usage, watch

# Rounds, chunks and garbage collection are fast enough for a short test.
QUICK = (
    "retention_period_s=0.5,retention_settle_s=1,chunk_flush_age_s=0.5,chunk_flush_bytes=1048576,"
    "chunk_garbage_delay_s=1,snapshot_interval_s=1,checkpoint_interval_s=0.5,log_file_bytes=8388608,"
    "log_spare_files=1"
)
DAY_MS = 24 * 3_600_000
LONG_S = float(os.environ.get("NADI_RETENTION_S", "600"))  # duration of the long tests


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestartableServer]:
    server = RestartableServer(tmp_path / "data", environment={"NADI_LIMITS": QUICK})
    yield server
    server.close()


@pytest.fixture
def manager(server: RestartableServer) -> Iterator[StreamManager]:
    with StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        yield manager


def write(manager: StreamManager, count: int, stream: str = "meters") -> None:
    with manager.create_writer("home", stream) as writer:
        for number in range(count):
            writer.write_event(number.to_bytes(8, "big") + bytes(84), f"{number % 7}")
        writer.flush()


def kept_events(manager: StreamManager) -> set[bytes]:
    return set(pa.table(nadi.scan(manager, "home", "meters"))["event"].to_pylist())


def test_stream_is_retained_by_policy_over_a_kill(server: RestartableServer, manager: StreamManager) -> None:
    policy = RetentionPolicy.by_size(20_000)
    manager.create_stream("home", "meters", scaling=ScalingPolicy.fixed(3), retention=policy)
    write(manager, 1_000)
    until(lambda: 20_000 <= manager.retained("home", "meters").size_bytes < 20_200)
    kept = manager.retained("home", "meters")
    assert kept.holders == ()
    assert kept.oldest_at is not None
    cuts = manager.cuts("home", "meters")
    assert cuts.events_between(kept.head, cuts.tail()) == kept.size_bytes // 100
    server.restart()
    write(manager, 1_000)
    until(lambda: 20_000 <= manager.retained("home", "meters").size_bytes < 20_200)
    manager.update_stream("home", "meters", retention=RetentionPolicy.by_time(2_000, over_bookmarks=True))
    assert manager.stream_configuration("home", "meters").retention == RetentionPolicy.by_time(
        2_000, over_bookmarks=True
    )
    until(lambda: manager.retained("home", "meters").size_bytes == 0)
    manager.update_stream("home", "meters", retention=None)
    assert manager.stream_configuration("home", "meters").retention is None
    write(manager, 100)
    time.sleep(3)
    assert manager.retained("home", "meters").size_bytes == 10_000


def test_by_event_time_the_last_days_are_retained(manager: StreamManager) -> None:
    policy = RetentionPolicy.by_time(30 * DAY_MS, by_event_time=True)
    manager.create_stream("home", "meters", scaling=ScalingPolicy.fixed(2), retention=policy, event_time="read_at")
    assert manager.stream_configuration("home", "meters").retention == policy
    now = datetime.now(UTC).replace(microsecond=0)
    hours = [now - timedelta(hours=hour) for hour in range(24 * 365, 0, -1)]
    events = [json.dumps({"read_at": hour.isoformat(), "filler": "x" * 60}).encode() for hour in hours]
    with manager.create_writer("home", "meters") as writer:
        writer.write_batch(events, [str(number % 7) for number in range(len(events))])
        writer.flush()
    wanted = {event for event, hour in zip(events, hours, strict=True) if hour > now - timedelta(days=30)}

    def is_truncated() -> bool:
        return manager.retained("home", "meters").size_bytes < 2 * sum(len(event) + 8 for event in wanted)

    until(is_truncated)
    assert wanted <= kept_events(manager) < set(events)
    with manager.create_writer("home", "meters") as writer:  # later events that are too old, or without a time
        writer.write_batch([b'{"read_at": 1000}', b"no time"] * 1_000, ["0", "1"] * 1_000)
        writer.flush()
    time.sleep(2)
    assert wanted <= kept_events(manager)


def test_by_event_time_events_without_time_hold_nothing_back(manager: StreamManager) -> None:
    """Neither at the end of a sealed segment, nor in a segment with no other events."""
    policy = RetentionPolicy.by_time(2_000, by_event_time=True)
    manager.create_stream("home", "meters", segments=2, retention=policy, event_time="at")
    with manager.create_writer("home", "meters") as writer:
        writer.write_batch([json.dumps({"at": time.time()}).encode(), b"no time"], ["0", "0"])
        writer.flush()
        manager.scale_stream("home", "meters", [0, 1], [(0, 0.5), (0.5, 1)])
        writer.write_batch([b"no time"] * 10, [str(number) for number in range(10)])
        writer.flush()
    until(lambda: manager.retained("home", "meters").size_bytes == 0)


def test_report_names_holders(manager: StreamManager) -> None:
    manager.create_stream("home", "meters", retention=RetentionPolicy.by_size(5_000, 30_000))
    write(manager, 30)
    bookmark = manager.bookmarks("home").create("monday", manager.stream_info("home", "meters").tail)
    write(manager, 470)
    until(lambda: manager.retained("home", "meters").head == bookmark.cut)
    (holder,) = manager.retained("home", "meters").holders
    assert (holder.kind, holder.name, holder.cut, holder.bytes_after) == ("bookmark", "monday", bookmark.cut, 47_000)
    manager.bookmarks("home").delete("monday")
    until(lambda: manager.retained("home", "meters").size_bytes == 5_000)
    by_hand = StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT
    groups = manager.reader_group_manager("home")
    groups.create_reader_group("archive", "meters", retention=by_hand)
    released = manager.retained("home", "meters").head
    groups.get_reader_group("archive").update_retention_stream_cut([released])
    write(manager, 200)
    time.sleep(2)
    (holder,) = manager.retained("home", "meters").holders
    assert (holder.kind, holder.name, holder.cut, holder.bytes_after) == (
        "subscriber",
        "home/archive",
        released,
        25_000,
    )
    write(manager, 200)
    until(lambda: manager.retained("home", "meters").size_bytes == 30_000)
    groups.delete_reader_group("archive")
    until(lambda: manager.retained("home", "meters").size_bytes == 5_000)


@pytest.mark.parametrize(
    ("policy", "value"),
    [
        (RetentionPolicy.by_size(10, 5), "maximum"),
        (RetentionPolicy.by_time(-1), "milliseconds"),
        (RetentionPolicy.by_size(0), "0 bytes"),
        (RetentionPolicy.by_time(1, by_event_time=True), "event time"),
    ],
)
def test_invalid_policy_is_rejected(manager: StreamManager, policy: RetentionPolicy, value: str) -> None:
    with pytest.raises(InvalidArgumentError, match=value):
        manager.create_stream("home", "bad", retention=policy)


def bounded(usages: list[Usage], tier1: int, tier2: int) -> None:
    """Check that both tiers are stable after the first third, allowing for data being moved or awaiting deletion."""
    settled = usages[len(usages) // 3 :]
    assert max(usage.tier1 for usage in settled) < tier1
    assert max(usage.tier2 for usage in settled) < tier2


def test_both_tiers_stay_small_under_load(server: RestartableServer, manager: StreamManager) -> None:
    manager.create_stream("home", "meters", segments=2, retention=RetentionPolicy.by_size(4 * MIB))
    with Load(server.controller_uri, "home", "meters", bytes_per_s=4 * MIB).running() as load:
        usages = watch(manager, server.folder, load, seconds=9, every_s=0.5)
    assert load.written > 8 * MIB
    bounded(usages, 180 * MIB, 30 * MIB)  # under load from other tests, unflushed data takes a few more files
    assert all(usage.kept < 16 * MIB for usage in usages[8:])


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_by_size_under_constant_load_for_ten_minutes(tmp_path: Path) -> None:
    """Run with the default limits of servers."""
    with RestartableServer(tmp_path / "data") as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters", segments=2, retention=RetentionPolicy.by_size(64 * MIB))
        with Load(server.controller_uri, "home", "meters", bytes_per_s=4 * MIB).running() as load:
            usages = watch(manager, server.folder, load, seconds=LONG_S, every_s=10)
        # plus the data of a round and a flush, 30 s of garbage, and chunks that are half before the head
        bounded(usages, 400 * MIB, (64 + 4 * (10 + 10 + 30 + 10) + 64) * MIB)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_by_consumption_with_a_slow_group_and_a_bookmark_for_ten_minutes(tmp_path: Path) -> None:
    """A group that releases data after a minute retains that much; a bookmark retains everything after it for half of
    the time."""
    with RestartableServer(tmp_path / "data") as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters", segments=2, retention=RetentionPolicy.by_size(16 * MIB))
        by_hand = StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT
        groups = manager.reader_group_manager("home")
        groups.create_reader_group("slow", "meters", retention=by_hand)
        group, tails = groups.get_reader_group("slow"), list[StreamCut]()
        group.update_retention_stream_cut([manager.stream_info("home", "meters").tail])

        def slowly() -> None:
            tails.append(manager.stream_info("home", "meters").tail)
            group.update_retention_stream_cut(tails[-7:-6])
            for holder in manager.retained("home", "meters").holders:
                print(f"       {holder.kind} {holder.name}: {holder.bytes_after / MIB:.1f} MiB", flush=True)

        with Load(server.controller_uri, "home", "meters", bytes_per_s=MIB).running() as load:
            first = watch(manager, server.folder, load, seconds=LONG_S / 4, every_s=10, meanwhile=slowly)
            bookmark = manager.bookmarks("home").create("here", manager.stream_info("home", "meters").tail)
            held = watch(manager, server.folder, load, seconds=LONG_S / 4, every_s=10, meanwhile=slowly)
            assert manager.retained("home", "meters").head == bookmark.cut or LONG_S < 400
            manager.bookmarks("home").delete("here")
            freed = watch(manager, server.folder, load, seconds=LONG_S / 2, every_s=10, meanwhile=slowly)
        assert max(usage.kept for usage in first) < 100 * MIB
        assert min(usage.kept for usage in first[8:] or held) > 40 * MIB
        assert max(usage.kept for usage in freed[len(freed) // 2 :]) < 100 * MIB
        bounded(freed, 400 * MIB, (70 + 30 + 20 + 64) * MIB)
