"""Delivery guarantees of a group whose readers are killed, closed or taken offline."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nadi.client import ReaderGroupManager, StreamManager
from nadi.client.serializers import Text
from nadi.errors import InvalidArgumentError, ReaderOfflineError
from nadi.testing import RestartableServer
from tests.support.waiting import until

from .support import got, new_group, new_stream, numbers, read_all, write

ONCE: dict[str, Any] = {"delivery": "at-most-once"}


def drained(reader: Any) -> list[int]:
    return numbers(list(iter(lambda: reader.read_next_event(1), None)))


@pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once"])
@pytest.mark.parametrize("way", ["events", "blocks"])
@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_readers_killed_at_random_keep_their_delivery_guarantee(
    uri: str, manager: StreamManager, groups: ReaderGroupManager, tmp_path: Path, delivery: Any, way: str, kills: int
) -> None:
    chance = random.Random(f"{delivery} {way}")
    stream = new_stream(manager, 3)
    group = new_group(groups, stream, refresh_ms=50)
    path, count = tmp_path / "got", 0
    path.touch()
    for kill in range(kills):
        command = [sys.executable, "-m", "tests.client.readergroup.reader_main", uri, group.name]
        with subprocess.Popen([*command, f"killed-{kill}", delivery, way, str(path)]) as process:
            most = path.stat().st_size + chance.randrange(1, 5_000)
            for _ in range(10):
                write(manager, stream, count, count + 300)
                count += 300
            until(lambda size=most: path.stat().st_size >= size)  # type: ignore[misc]
            process.kill()
        group.reader_offline(f"killed-{kill}")
    with group.create_reader("last", delivery=delivery) as last:
        found = Counter(int(line) for line in path.read_bytes().split()) + Counter(drained(last))
    if delivery == "at-most-once":
        assert max(found.values()) == 1
        assert len(found) > count / 10
    else:
        assert found.keys() == set(range(count))


def test_reader_closed_within_a_block_returns_only_unread_events(
    manager: StreamManager, groups: ReaderGroupManager
) -> None:
    group = new_group(groups, new_stream(manager, 2, 100))
    found: list[int] = []
    for part in range(5):
        reader = group.create_reader(f"part-{part}", **ONCE)
        found += numbers([read for _ in range(9) if (read := reader.read_next_event(5)) is not None])
        reader.close(is_done=part % 2 == 0)  # the last event was handed out, and is not handed out again
    with suppress(ZeroDivisionError), group.create_reader("fails", **ONCE) as reader:
        found += numbers([reader.read_next_event(5) or pytest.fail("nothing came")])
        raise ZeroDivisionError
    with group.create_reader("last", **ONCE) as reader:
        found += drained(reader)
    assert Counter(found) == Counter(range(100))


def test_reader_declared_dead_returns_no_event_of_others(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1, 50)
    group = new_group(groups, stream)
    slow = group.create_reader("slow", **ONCE)
    found = numbers([slow.read_next_event(5) or pytest.fail("nothing came")])
    group.reader_offline("slow")
    write(manager, stream, 50, 100)
    with group.create_reader("other", **ONCE) as other:
        found += drained(other)
        rest = iter(lambda: slow.read_next_event(5), None)
        with pytest.raises(ReaderOfflineError):
            found.extend(number for read in rest for number in numbers([read]))
    assert max(Counter(found).values()) == 1
    assert set(range(50, 100)) <= set(found)


def test_changing_readers_share_each_event_once(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 4, 200)
    group = new_group(groups, stream, refresh_ms=50)
    first = group.create_reader("first", **ONCE)
    found = numbers([read for _ in range(20) if (read := first.read_next_event(5)) is not None])
    with group.create_reader("second", **ONCE) as second:
        until(lambda: drained_some(found, first, second) and len(group.segments_of_readers()["second"]) == 2)
        write(manager, stream, 200, 400)
        found += numbers(read_all(400 - len(found), first, second))
    first.close()
    assert Counter(found) == Counter(range(400))


def drained_some(found: list[int], *readers: Any) -> bool:
    found += numbers([read for reader in readers if (read := reader.read_next_event(0.01)) is not None])
    return True


def test_server_killed_while_a_reader_reads_repeats_nothing(nadi_server: RestartableServer) -> None:
    with StreamManager(nadi_server.controller_uri) as manager:
        manager.create_scope("sc")
        stream = new_stream(manager, 2, 300)
        reader = new_group(manager.reader_group_manager("sc"), stream).create_reader("reader", **ONCE)
        found = numbers([read for _ in range(100) if (read := reader.read_next_event(5)) is not None])
        nadi_server.kill()
        nadi_server.start()
        write(manager, stream, 300, 400)
        found += numbers(read_all(400 - len(found), reader))
        reader.close()
        manager.delete_scope("sc", recursive=True)
    assert Counter(found) == Counter(range(400))


def test_checkpoint_and_reset_under_at_most_once_are_exact(manager: StreamManager, groups: ReaderGroupManager) -> None:
    group = new_group(groups, new_stream(manager, 1, 60))
    with group.create_reader("reader", **ONCE) as reader:
        first = [reader.read_next_event(5) for _ in range(20)]
        cuts = group.stream_cuts()
        assert cuts, "recorded ahead"
        found = numbers([read for read in first if read is not None]) + drained(reader)
        assert found == list(range(60))
        group.reset_reader_group([manager.cuts("sc", group.stream_names()[0].split("/")[1]).head()])
        until(lambda: (read := reader.read_next_event(5)) is not None and read.is_reset)
        assert drained(reader) == list(range(60)), "a reset repeats its events"


def test_reader_of_values_records_before_it_returns_them(manager: StreamManager, groups: ReaderGroupManager) -> None:
    group = new_group(groups, new_stream(manager, 1, 5))
    with group.create_reader("values", serializer=Text(), **ONCE) as reader:
        read = got(reader.read_next_event(5))
        assert read.event is not None
        assert read.event.value == "0"
        assert group.unread_bytes() == 0


def test_exactly_once_reader_is_rejected(manager: StreamManager, groups: ReaderGroupManager) -> None:
    group = new_group(groups, new_stream(manager, 1))
    wrong: list[Any] = ["exactly-once", "twice", True, None]
    for delivery in wrong:
        with pytest.raises(InvalidArgumentError):
            group.create_reader("reader", delivery=delivery)
    assert group.online_readers() == []
