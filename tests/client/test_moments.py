"""Cuts of moments, from the client through the whole server, over scalings, transactions and crashes."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from nadi.client import StreamManager, aio
from nadi.client.stream_cuts.timestamps import moment_ms, moment_of
from nadi.errors import InvalidArgumentError, StreamNotFoundError
from nadi.model.streamcut import StreamCut
from nadi.testing.server import RestartableServer

LIMITS = f"{os.environ.get('NADI_LIMITS', '')},time_index_ms=1,time_index_bytes=1"  # so that moments are exact
KEYS = [f"meter {n}" for n in range(20)]


def a_moment_after() -> int:
    """A millisecond that begins only now."""
    now_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now_ms:
        time.sleep(0.0002)
    return now_ms + 1


def events(manager: StreamManager, start: StreamCut, end: StreamCut) -> list[bytes]:
    return sorted(event.data for event in manager.read_events("home", "meters", start=start, end=end))


def test_the_stream_of_any_moment_stays_what_it_was(tmp_path: Path) -> None:
    with RestartableServer(tmp_path, environment={"NADI_LIMITS": LIMITS}) as server:
        with StreamManager(server.controller_uri) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters", 2)
            cuts = manager.cuts("home", "meters")
            moments, written = [a_moment_after()], []

            def write(label: str) -> None:
                batch = [f"{label} {key}".encode() for key in KEYS]
                with manager.create_writer("home", "meters") as writer:
                    writer.write_batch(batch, KEYS)
                written.append(sorted(batch))
                moments.append(a_moment_after())

            write("first")
            manager.scale_stream("home", "meters", [0], [(0.0, 0.25), (0.25, 0.5)])
            write("after a split")
            writer = manager.create_transaction_writer("home", "meters")
            transaction = writer.begin_txn()
            transaction.write_batch([b"in a transaction"] * len(KEYS), KEYS)
            write("while it is open")
            current = [segment.segment_id for segment in manager.current_segments("home", "meters")]
            manager.scale_stream("home", "meters", current[1:], [(0.25, 1.0)])
            transaction.commit(wait=True)
            written.append([b"in a transaction"] * len(KEYS))
            moments.append(a_moment_after())
            write("last")

            found = [cuts.at(moment) for moment in moments]
            assert found[0] == cuts.at(0) == cuts.head()
            assert cuts.settled(found[-1]) == cuts.tail() == cuts.at(moments[-1] + 3_600_000)
            for begin, end, batch in zip(found, found[1:], written, strict=False):
                assert events(manager, begin, end) == batch
                cuts.check(begin)
            server.restart()  # as a crash
            assert [cuts.at(moment) for moment in moments] == found
            write("after a crash")
            assert [cuts.at(moment) for moment in moments[:-1]] == found
            assert events(manager, found[-1], cuts.at(moments[-1])) == written[-1]

            manager.truncate_stream(found[2])
            assert cuts.at(moments[0]) == cuts.at(moments[1]) == cuts.head() == found[2]
            assert cuts.at(moments[3]) == found[3]
            manager.seal_stream("home", "meters")
            assert cuts.at(moments[3]) == found[3]
            assert cuts.at(a_moment_after()) == cuts.tail()
            server.restart()
            assert [cuts.at(moment) for moment in moments[2:-1]] == found[2:]

            moment = datetime.fromtimestamp(moments[3] / 1000, timezone(timedelta(hours=5)))
            assert cuts.at(moment) == cuts.named(moment.isoformat()) == found[3]
            with pytest.raises(InvalidArgumentError, match="no time zone"):
                cuts.at(moment.replace(tzinfo=None))
            with pytest.raises(StreamNotFoundError):
                manager.cuts("home", "none").at(moment)

        async def again() -> StreamCut:
            async with aio.StreamManager(server.controller_uri) as manager:
                return await manager.cuts("home", "meters").at(moments[3])

        assert asyncio.run(again()) == found[3]


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01 01:00:01.5+01:00", 1_500),
        ("1970-01-01T00:00:00.0019Z", 1),
        ("1969-12-31T23:59Z", 0),
        ("9999-12-31T23:59:59.999-12:00", 253_402_343_999_999),
        (-5, 0),
        (datetime(1970, 1, 1, 0, 0, 0, 999, tzinfo=UTC), 0),
        ((1 << 63) - 1, (1 << 63) - 1),
    ],
)
def test_moments_are_whole_milliseconds(moment: str | int | datetime, ms: int) -> None:
    assert moment_ms(moment_of(moment) if isinstance(moment, str) else moment) == ms


def test_what_is_no_time_and_what_has_no_zone_is_refused() -> None:
    for text in ("noon:", "2026-11-14T00:00", "2026-13-14T00:00Z", "12:30", "2026-11-14T00:00+25:00", "20260101"):
        with pytest.raises(InvalidArgumentError):
            moment_of(text)
    moments: list[Any] = [1 << 63, True, 1.5, "2026-11-14T00:00Z", None, datetime(2026, 11, 14)]
    for moment in moments:
        with pytest.raises(InvalidArgumentError):
            moment_ms(moment)
