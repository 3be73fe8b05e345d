"""Files that are found, known again, rotated, emptied and removed, by a real server."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import nadi
from nadi.client import aio
from nadi.errors import ConflictError
from nadi.ingest.files import tail as tails
from nadi.ingest.files.follower import Follower
from nadi.ingest.files.places import Places, alone
from nadi.ingest.files.tail import Reading
from nadi.standalone.embedded import EmbeddedServer
from tests.ingest.files.logs import Logging, check_once_and_in_order
from tests.ingest.files.logs import stored as numbers_of

_streams = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with nadi.embedded(tmp_path_factory.mktemp("data")) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("in")
        yield server


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


def test_one_at_a_time_by_a_name() -> None:
    with alone("tcp://x:1", "in", "logs", "me"):
        again = alone("tcp://x:1", "in", "logs", "me")
        with pytest.raises(ConflictError, match="another nadi ingest is at work for in/logs by the name 'me'"), again:
            pass
        with alone("tcp://x:1", "in", "logs", "somebody else"):
            pass
    with alone("tcp://x:1", "in", "logs", "me"):
        pass
