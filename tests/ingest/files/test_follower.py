"""Files that are found, known again, rotated, emptied and removed, by a real server."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import nadi
from nadi.client import aio
from nadi.errors import ConflictError, NadiError
from nadi.ingest.files import follower as followers
from nadi.ingest.files import tail as tails
from nadi.ingest.files.follower import Follower
from nadi.ingest.files.places import Place, Places, alone
from nadi.ingest.files.tail import Reading
from nadi.standalone.embedded import EmbeddedServer
from nadi.testing import RestartableServer
from tests.ingest.files.logs import Logging, check_once_and_in_order
from tests.ingest.files.logs import stored as numbers_of

_streams = itertools.count()


@pytest.fixture
def manager(server: EmbeddedServer) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(server.controller_uri) as manager:
        yield manager


@pytest.fixture
def stream(manager: nadi.StreamManager) -> str:
    name = f"logs-{next(_streams)}"
    manager.create_stream("in", name, 2)
    return name


async def read_all(
    server: EmbeddedServer, stream: str, *patterns: Path | str, from_end: bool = False, **reading: object
) -> Follower:
    """All that is there now."""
    async with aio.StreamManager(server.controller_uri) as manager:
        places = await Places.open(manager, "in", stream, "test")
        work = Reading(once=True, **reading)  # type: ignore[arg-type]
        follower = Follower(manager, "in", stream, list(map(str, patterns)), places, work, from_end=from_end)
        await follower.run()
        return follower


@asynccontextmanager
async def following(server: EmbeddedServer, stream: str, *patterns: Path | str) -> AsyncIterator[Follower]:
    async with aio.StreamManager(server.controller_uri) as manager:
        places = await Places.open(manager, "in", stream, "test")
        follower = Follower(manager, "in", stream, list(map(str, patterns)), places, Reading())
        task = asyncio.create_task(follower.run())
        yield follower
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def change_places(server: EmbeddedServer, stream: str, change: Callable[[dict[str, Any]], None]) -> int:
    """In what is kept of files. Return of how many."""
    async with aio.StreamManager(server.controller_uri) as manager:
        table = await manager.key_value_table("in", f"ingest-{stream}")
        changed = 0
        async for entry in table.entries():
            if b"head_digest" in entry.value:
                place = msgspec.msgpack.decode(entry.value)
                change(place)
                await table.put(entry.key, msgspec.msgpack.encode(place))
                changed += 1
    return changed


def stored(manager: nadi.StreamManager, stream: str) -> list[bytes]:
    return [event.data for event in manager.read_events("in", stream, end=manager.stream_info("in", stream).tail)]


async def until(follower: Follower, lines: int) -> None:
    async with asyncio.timeout(60):
        while follower.progress.lines < lines:  # noqa: ASYNC110 - it tells nobody of each line
            await asyncio.sleep(0.01)


async def test_what_is_there_and_what_comes_later(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_bytes(b"one\r\n\xff two\npart")
    (tmp_path / "b.log").write_bytes(b"three\n")
    (tmp_path / "b.log.gz").write_bytes(b"not this\n")
    (tmp_path / "empty.log").touch()
    await read_all(server, stream, tmp_path / "*.log", tmp_path / "none.log")
    assert sorted(stored(manager, stream)) == sorted([b"one", b"\xff two", b"three"])
    with (tmp_path / "a.log").open("ab") as file:
        file.write(b"ial\nfour\n")
    await read_all(server, stream, tmp_path)  # a folder
    assert sorted(stored(manager, stream)) == sorted([b"one", b"\xff two", b"three", b"partial", b"four"])


async def test_from_the_end(server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"old\npa")
    await read_all(server, stream, tmp_path / "*.log", from_end=True)
    with (tmp_path / "a.log").open("ab") as file:
        file.write(b"rt\nnew\n")
    (tmp_path / "later.log").write_bytes(b"all of it\n")
    await read_all(server, stream, tmp_path / "*.log", from_end=True)
    assert sorted(stored(manager, stream)) == [b"all of it", b"new", b"part"]


@pytest.mark.parametrize("copies", [False, True], ids=["renamed", "copied"])
@pytest.mark.parametrize("alone", [False, True], ids=["matched", "not-matched"])
async def test_rotation_while_nobody_reads(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path, copies: bool, alone: bool
) -> None:
    """What was written before and after it is read from the old file, then from the new one, which have one key."""
    logging = Logging(tmp_path, "a", random.Random(1), copies=copies)
    pattern = tmp_path / ("a.log" if alone else "a.log*")
    logging.write(100)
    await read_all(server, stream, pattern)
    logging.write(100)
    logging.rotate()
    logging.write(100)
    await read_all(server, stream, pattern)
    logging.close()
    assert numbers_of(manager, stream) == {"a": list(range(300))}


@pytest.mark.parametrize("copies", [False, True], ids=["renamed", "copied"])
async def test_rotation_at_any_moment(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path, copies: bool
) -> None:
    chance = random.Random(7)
    logging = Logging(tmp_path, "a", chance, copies=copies)
    async with following(server, stream, tmp_path / "a.log*") as follower:
        for _ in range(4):
            for _ in range(chance.randrange(40)):
                logging.write(chance.randrange(30))
                await asyncio.sleep(0.01)  # the moments are what is tried
            logging.rotate()
        logging.write(10)
        await until(follower, logging.written)
    logging.close()
    check_once_and_in_order(manager, stream, {"a": logging.written})


async def test_a_copy_in_the_making_is_not_read(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    log, copy = tmp_path / "a.log", tmp_path / "a.log.1"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)))
    async with following(server, stream, tmp_path / "a.log*") as follower:
        await until(follower, 1000)
        copy.write_bytes(log.read_bytes()[:3000])
        (tmp_path / "a.log-other").write_bytes(b"line 0\nother\n")
        await until(follower, 1002)
        shutil.copyfile(log, copy)
        with copy.open("ab") as file:  # what was written to the log just before it was emptied
            file.write(b"late\n")
        with log.open("r+b") as file:
            file.truncate(0)
            file.write(b"new\n")
        await until(follower, 1004)
    found = stored(manager, stream)
    assert len(found) == 1004
    assert found.count(b"late") == found.count(b"new") == found.count(b"other") == 1


async def test_a_last_line_without_an_end_of_a_file_that_is_over(
    server: EmbeddedServer,
    manager: nadi.StreamManager,
    stream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tails, "INGEST_QUIET_S", 0.5)
    log = tmp_path / "a.log"
    log.write_bytes(b"one\nlast")
    async with following(server, stream, log) as follower:
        await until(follower, 1)
        log.unlink()
        log.write_bytes(b"two\n")
        await until(follower, 3)
    assert stored(manager, stream).count(b"last") == 1
    assert sorted(stored(manager, stream)) == [b"last", b"one", b"two"]


async def test_events_of_several_lines(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1 error\n  at x\n2 ok\n")
    await read_all(server, stream, log, starts=re.compile(rb"^\d"))
    with log.open("ab") as file:
        file.write(b"  too late\n3 ok\n")
    await read_all(server, stream, log, starts=re.compile(rb"^\d"))
    assert stored(manager, stream) == [b"1 error\n  at x", b"2 ok", b"  too late", b"3 ok"]


# --- what is kept ---------------------------------------------------------------------------------


async def test_what_an_older_version_kept_is_gone_on_from(
    server: EmbeddedServer,
    manager: nadi.StreamManager,
    stream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It told places by fewer fields, and by paths as they were given."""
    monkeypatch.chdir(tmp_path)
    logging = Logging(tmp_path, "a", random.Random(1), copies=True)
    logging.write(100)
    await read_all(server, stream, "a.log")
    fields = [
        "id",
        "device",
        "inode",
        "path",
        "key",
        "head_bytes",
        "head_digest",
        "epoch",
        "offset",
        "forced",
        "seen_s",
    ]

    def as_it_was(place: dict[str, Any]) -> None:
        for name in place.keys() - set(fields):
            del place[name]
        place["path"] = place["key"] = "a.log"
        assert place.keys() == set(fields)

    assert await change_places(server, stream, as_it_was) == 1
    logging.write(100)
    logging.rotate()
    logging.write(100)
    await read_all(server, stream, "a.log")
    logging.close()
    check_once_and_in_order(manager, stream, {"a": 300})


async def test_a_file_that_is_quiet_for_months_is_not_read_again(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_bytes(b"one\n")
    await read_all(server, stream, tmp_path / "a.log")

    def long_ago(place: dict[str, Any]) -> None:
        place["seen_s"] = time.time() - 100 * 24 * 3600

    assert await change_places(server, stream, long_ago) == 1
    await read_all(server, stream, tmp_path / "a.log")
    assert stored(manager, stream) == [b"one"]


async def test_files_that_are_gone_for_long_are_forgotten(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_bytes(b"one\n")
    await read_all(server, stream, tmp_path / "a.log")
    (tmp_path / "a.log").unlink()
    ages = iter([29, 31])

    def of_age(place: dict[str, Any]) -> None:
        place["seen_s"] = time.time() - next(ages) * 24 * 3600

    for _ in range(2):
        assert await change_places(server, stream, of_age) == 1
        await read_all(server, stream, tmp_path / "a.log")
    assert await change_places(server, stream, of_age) == 0


async def test_whoever_comes_later_by_a_name_has_its_files(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    """Also from another machine, where neither sees the other's lock: each line once, and the first one is told."""
    (tmp_path / "a.log").write_bytes(b"1\n")
    async with aio.StreamManager(server.controller_uri) as client:

        async def follower() -> Follower:
            places = await Places.open(client, "in", stream, "test")
            return Follower(client, "in", stream, [str(tmp_path)], places, Reading())

        first = await follower()
        running = asyncio.create_task(first.run())
        await until(first, 1)
        second = await follower()
        after = asyncio.create_task(second.run())
        for number in range(2, 12):
            (tmp_path / f"{number}.log").write_bytes(b"%d\n" % number)
            with (tmp_path / "a.log").open("ab") as log:
                log.write(b"a%d\n" % number)
            await asyncio.sleep(0.2)  # so that each may see it first
        with pytest.raises(ConflictError, match="another nadi ingest was started by the name 'test'"):
            await asyncio.wait_for(running, 60)
        async with asyncio.timeout(60):
            while len(set(stored(manager, stream))) < 21:  # noqa: ASYNC110 - lines of both
                await asyncio.sleep(0.1)
        after.cancel()
        await asyncio.gather(after, return_exceptions=True)
    wanted = [b"%d" % n for n in range(1, 12)] + [b"a%d" % n for n in range(2, 12)]
    assert sorted(stored(manager, stream)) == sorted(wanted)


async def test_many_places_are_kept_and_forgotten_at_once(server: EmbeddedServer, stream: str, tmp_path: Path) -> None:
    folder = "/".join(["x" * 250] * 15)
    places = [
        Place(number.to_bytes(16), 1, number, f"{folder}/{number}", f"{folder}/{number}", 0, "", 0, folder=folder)
        for number in range(1, 2500)
    ]
    async with aio.StreamManager(server.controller_uri) as client:
        kept = await Places.open(client, "in", stream, "test")
        await kept.keep(places)
        assert {place.id for place in await kept.load()} == {place.id for place in places}
        await kept.forget(places)
        assert await kept.load() == []


async def test_positions_that_cannot_be_kept_end_it(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n" * 1000)  # more than what the file is known by
    async with aio.StreamManager(server.controller_uri) as client:
        follower = Follower(
            client, "in", stream, [str(log)], await Places.open(client, "in", stream, "test"), Reading()
        )
        running = asyncio.create_task(follower.run())
        await until(follower, 1000)
        manager.delete_key_value_table("in", f"ingest-{stream}")
        with log.open("ab") as file:
            file.write(b"2\n")
        with pytest.raises(NadiError):
            await asyncio.wait_for(running, 60)


async def test_it_stops_while_the_server_is_away(tmp_path: Path) -> None:
    """And goes on from what the segments know, for the last positions aren't kept then."""
    log = tmp_path / "a.log"
    log.write_bytes(b"1\n" * 1000)
    with RestartableServer(tmp_path / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("in")
        manager.create_stream("in", "logs")
        async with aio.StreamManager(server.controller_uri) as client:
            follower = Follower(
                client, "in", "logs", [str(log)], await Places.open(client, "in", "logs", "test"), Reading()
            )
            running = asyncio.create_task(follower.run())
            await until(follower, 1000)
            server.kill()
            with log.open("ab") as file:
                file.write(b"2\n")
            running.cancel()
            _, waiting = await asyncio.wait([running], timeout=60)
            assert not waiting


# --- what a file is known by ------------------------------------------------------------------------


async def test_a_file_that_was_emptied_and_begins_with_the_same_kilobyte(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    """As logs do that have a head of their own, such as W3C's."""
    log, head = tmp_path / "a.log", b"#" + b"h" * 2000 + b"\n"
    log.write_bytes(head + b"1\n2\n")
    await read_all(server, stream, log)
    with log.open("r+b") as file:
        file.truncate(0)
        file.write(head + b"3\n4\n5\n")
    await read_all(server, stream, log)
    assert [line for line in stored(manager, stream) if len(line) == 1] == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_link_to_a_file_that_is_rotated_in_its_own_folder(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    logs, links = tmp_path / "logs", tmp_path / "links"
    logs.mkdir()
    links.mkdir()
    (links / "a.log").symlink_to(logs / "a.log")
    logging = Logging(logs, "a", random.Random(1), copies=False)
    logging.write(10)
    await read_all(server, stream, links)
    logging.write(10)
    logging.rotate()
    logging.write(10)
    await read_all(server, stream, links)
    logging.close()
    check_once_and_in_order(manager, stream, {"a": 30})


async def test_a_copy_is_none_whichever_comes_first(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    """A copy in the making, when the folder is looked at for the first time."""
    lines = b"".join(b"line %d\n" % number for number in range(100))
    (tmp_path / "a.log").write_bytes(lines)
    (tmp_path / "a-1.log").write_bytes(lines[:300])
    await read_all(server, stream, tmp_path)
    assert len(stored(manager, stream)) == 100


async def test_a_file_that_is_over_and_has_as_much_of_other_content_now(
    server: EmbeddedServer,
    manager: nadi.StreamManager,
    stream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tails, "INGEST_QUIET_S", 0.5)
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    async with following(server, stream, tmp_path) as follower:
        await until(follower, 1)
        log.rename(tmp_path / "b.log")
        async with asyncio.timeout(60):
            while follower.progress.unread:  # noqa: ASYNC110 - it tells nobody which files it has closed
                await asyncio.sleep(0.01)
        (tmp_path / "b.log").write_bytes(b"two\n")
        await until(follower, 2)
    assert stored(manager, stream).count(b"two") == 1


# --- more files than may be open --------------------------------------------------------------------


async def test_quiet_files_give_way_to_those_that_wait(
    server: EmbeddedServer,
    manager: nadi.StreamManager,
    stream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tails, "INGEST_QUIET_S", 0.2)
    monkeypatch.setattr(followers, "INGEST_FILES", 3)
    for number in range(8):
        (tmp_path / f"{number}.log").write_bytes(b"%d a\n" % number)
    async with following(server, stream, tmp_path) as follower:
        await until(follower, 8)
        for number in range(8):
            with (tmp_path / f"{number}.log").open("ab") as file:
                file.write(b"%d b\n" % number)
        await until(follower, 16)
    assert sorted(stored(manager, stream)) == sorted(b"%d %c" % (n, c) for n in range(8) for c in b"ab")


def test_more_files_than_the_process_may_open(
    server: EmbeddedServer, manager: nadi.StreamManager, stream: str, tmp_path: Path
) -> None:
    for number in range(400):
        (tmp_path / f"{number}.log").write_bytes(b"%d\n" % number)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    command = [sys.executable, "-c", "from nadi.cli.app import main; main()", "ingest", "in", stream, str(tmp_path)]
    env = {**os.environ, "NADI_CONTROLLER": server.controller_uri}
    done = subprocess.run([*command, "--once"], env=env, preexec_fn=limit, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert sorted(stored(manager, stream), key=int) == [b"%d" % number for number in range(400)]


def test_one_at_a_time_by_a_name() -> None:
    with alone("tcp://x:1", "in", "logs", "me"):
        again = alone("tcp://x:1", "in", "logs", "me")
        with pytest.raises(ConflictError, match="another nadi ingest is at work for in/logs by the name 'me'"), again:
            pass
        with alone("tcp://x:1", "in", "logs", "somebody else"):
            pass
    with alone("tcp://x:1", "in", "logs", "me"):
        pass
