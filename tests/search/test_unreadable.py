"""A definition that can't be read hides no other: it is named in the list, is an error for whoever asks for it, and can
be dropped, with its shards as far as it says where these are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from nadi.errors import AlreadyExistsError, ProtocolError, StoreError
from nadi.search import IndexNotFoundError, serve_matcher
from nadi.search.standing.catalog import StandingQueries
from nadi.testing import RestartableServer
from tests.cli.test_streams import Shell
from tests.search.support import Indexed, all_hits, event

pytest.importorskip("tantivy", reason="search needs tantivy")


def objects(logs: Indexed) -> list[Path]:
    return [path for path in (logs.folder / "shards" / "search").rglob("*") if path.is_file()]


async def some(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(20)))
    async with logs.running():
        await logs.caught_up()
    await logs.indexes.create("unfit", "message:text", where=str(logs.folder / "shards"))


async def changed(logs: Indexed, key: bytes, value: bytes) -> bytes:
    table = logs.manager.table(logs.scope, "_search")
    held = await table.get(key)
    assert held is not None
    await table.put(key, value)
    return held.value


@pytest.mark.parametrize("says_where", [True, False])
async def test_an_index(logs: Indexed, nadi_server: RestartableServer, says_where: bool) -> None:
    await some(logs)
    _, task = logs.start()
    held = await logs.manager.table(logs.scope, "_search").get(b"index/logs")
    assert held is not None
    newer = msgspec.json.encode(msgspec.json.decode(held.value) | {"fields": {"message": "text"}})
    await changed(logs, b"index/logs", newer if says_where else b"\xff{")
    assert [one.stream for one in await logs.indexes.list()] == ["unfit"]
    (bad,) = await logs.indexes.unreadable()
    assert bad.name == "logs"
    assert f"`nadi search delete {logs.scope} logs`" in bad.problem
    shell = Shell(nadi_server.controller_uri)
    rows = await asyncio.to_thread(shell.json, "search", "list", logs.scope)
    assert [(row["stream"], row["problem"]) for row in rows] == [("unfit", None), ("logs", bad.problem)]
    for ask in (logs.search, logs.status, lambda: logs.indexes.stop("logs"), logs.create, lambda: logs.start()[1]):
        with pytest.raises(ProtocolError, match="can't be read"):
            await ask()
    if not says_where:
        with pytest.raises(StoreError, match="--keep-objects"):
            await logs.indexes.drop("logs")
    assert objects(logs) != []
    leave = [] if says_where else ["--keep-objects"]
    await asyncio.to_thread(shell.run, "search", "delete", logs.scope, "logs", "--yes", *leave)
    await asyncio.wait_for(task, 60)  # one that ran goes on until then
    if not says_where:  # what the one that ran hasn't deleted
        clean = ["search", "clean", "--index", f"file://{logs.folder}/shards", "--yes"]
        await asyncio.to_thread(shell.run, *clean)
    assert objects(logs) == []
    assert await logs.indexes.unreadable() == []
    with pytest.raises(IndexNotFoundError):
        await logs.indexes.get("logs")
    await logs.create()
    async with logs.running():
        assert len(await all_hits(await logs.caught_up())) == 20


async def test_it_goes_with_its_stream_and_its_scope(logs: Indexed, nadi_server: RestartableServer) -> None:
    await some(logs)
    held = await logs.manager.table(logs.scope, "_search").get(b"index/logs")
    assert held is not None
    newer = msgspec.json.encode(msgspec.json.decode(held.value) | {"format": 7})
    await changed(logs, b"index/logs", newer)
    await logs.manager.seal_stream(logs.scope, "logs")
    shell = Shell(nadi_server.controller_uri)
    done = await asyncio.to_thread(shell.run, "stream", "delete", logs.scope, "logs", stdin=b"y\n")
    assert "its search index" in done.stdout
    assert objects(logs) == []
    await changed(logs, b"index/unfit", b"")
    await asyncio.to_thread(shell.run, "scope", "delete", logs.scope, "--recursive", "--yes", code=1)
    await logs.indexes.drop("unfit", leave_shards=True)
    await asyncio.to_thread(shell.run, "scope", "delete", logs.scope, "--recursive", "--yes")


async def test_standing_queries(logs: Indexed, nadi_server: RestartableServer) -> None:
    queries = StandingQueries(logs.manager, logs.scope)
    await logs.manager.create_stream(logs.scope, "hits")
    found = await queries.create("logs", "hits", fields="message:text")
    two = (await queries.add("logs", {"one": "a", "two": "b"}))[1]
    await changed(logs, f"standing-query/logs/{found.id}/{two.key}".encode(), b"\x81\xa1a\x01")
    assert [one.name for one in await queries.list("logs")] == ["one"]
    assert (await queries.status("logs")).queries == 2
    (bad,) = await queries.unreadable("logs")
    assert bad.name == "two"
    assert f"`nadi search standing remove {logs.scope} logs two`" in bad.problem
    await logs.write(map(event, range(10)))
    for ask in (lambda: serve_matcher(logs.manager, logs.scope, "logs"), lambda: queries.add("logs", {"three": "c"})):
        with pytest.raises(ProtocolError, match=r"the standing query .*/two/.* can't be read"):
            await asyncio.wait_for(ask(), 60)
    shell = Shell(nadi_server.controller_uri)
    rows = await asyncio.to_thread(shell.json, "search", "standing", "list", logs.scope, "logs")
    assert [(row["name"], row["problem"]) for row in rows] == [("one", None), ("two", bad.problem)]
    await queries.remove("logs", ["one"])  # without the bad one in the way
    await queries.remove("logs", ["two"])
    assert (await queries.list("logs"), await queries.unreadable("logs")) == ([], [])
    await queries.add("logs", {"two": "b"})


async def test_a_set_of_standing_queries(logs: Indexed, nadi_server: RestartableServer) -> None:
    queries = StandingQueries(logs.manager, logs.scope)
    await logs.manager.create_stream(logs.scope, "hits")
    await queries.create("logs", "hits", fields="message:text")
    await queries.add("logs", {"one": "a"})
    await changed(logs, b"standing/logs", b"\xc1")
    for ask in (queries.get, queries.list, queries.status, queries.stop):
        with pytest.raises(ProtocolError, match="nadi search standing delete"):
            await ask("logs")
    with pytest.raises(AlreadyExistsError):
        await queries.create("logs", "hits", fields="message:text")
    shell = Shell(nadi_server.controller_uri)
    await asyncio.to_thread(shell.run, "search", "standing", "delete", logs.scope, "logs", "--yes")
    table = logs.manager.table(logs.scope, "_search")
    assert await table.get(b"standing/logs") is None
    await queries.create("logs", "hits", fields="message:text")
    assert await queries.list("logs") == []
