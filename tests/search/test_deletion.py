"""Deleting an index deletes all of its objects, despite crashes and late workers. An index with an unreadable
definition doesn't affect others: it is listed, raises an error when used, and can be deleted, with its shards if it
says where they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from nadi.errors import AlreadyExistsError, ConflictError, NotFoundError, ProtocolError, StoreError, UnavailableError
from nadi.search import IndexNotFoundError, serve_matcher
from nadi.search.objects import Shards
from nadi.search.percolate.catalog import StandingQueries
from tests.search.support import FIELDS, Indexed, all_hits, event, numbers

pytest.importorskip("tantivy", reason="search needs tantivy")


async def test_dropped_while_indexers_work(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.limits.SEARCH_COMMIT_S", 0.01)
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            await logs.write(map(event, range(written, written + 20)))
            written += 20

    writing = asyncio.create_task(write())
    for _ in range(2):
        await logs.create()
        tasks = [logs.start()[1] for _ in range(2)]
        await logs.until_shards(3, 1_000)
        await logs.indexes.delete("logs")
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert logs.objects() == []
    writing.cancel()


async def test_drop_killed_is_repeatable(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    search = await logs.indexed(map(event, range(10)))

    async def killed(shards: Shards, names: Sequence[str]) -> None:
        raise ConnectionError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "delete", killed)
        with pytest.raises(ConnectionError):
            await logs.indexes.delete("logs")
    assert logs.objects() != []
    assert [index.is_deleted for index in await logs.indexes.list()] == [True]
    for ask in (search.query, logs.search, logs.status, lambda: logs.start()[1], lambda: logs.indexes.stop("logs")):
        with pytest.raises(IndexNotFoundError):
            await ask()
    with pytest.raises(ConflictError):
        await logs.create()
    await logs.indexes.delete("logs")
    assert logs.objects() == []
    assert await logs.indexes.list() == []
    with pytest.raises(IndexNotFoundError):
        await logs.indexes.delete("logs")
    await logs.create()
    async with logs.running():
        assert len(await all_hits(await logs.caught_up())) == 10


async def test_late_indexer_leaves_no_shards(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.process.members.PROCESS_DEAD_S", 0.3)
    monkeypatch.setattr("nadi.process.worker.PROCESS_BEAT_S", 60.0)  # like a hanging indexer
    put, is_putting, is_deleted = Shards.put, asyncio.Event(), asyncio.Event()

    async def late(shards: Shards, shard: str, parts: Sequence[bytes | memoryview]) -> None:
        is_putting.set()
        await is_deleted.wait()
        await put(shards, shard, parts)
        assert logs.objects() != []

    monkeypatch.setattr(Shards, "put", late)
    await logs.create()
    await logs.write(map(event, range(10)))
    _, task = logs.start()
    await asyncio.wait_for(is_putting.wait(), 60)
    await logs.indexes.delete("logs")
    await logs.create()  # another index, which must not be mistaken for the first
    is_deleted.set()
    await asyncio.wait_for(task, 60)
    assert logs.objects() == []


async def test_drop_with_lost_store_needs_keep_objects(logs: Indexed) -> None:
    shards, nothing = logs.folder / "shards", logs.folder / "nothing"
    nothing.write_bytes(b"")
    with pytest.raises(UnavailableError):
        await logs.indexes.create("logs", FIELDS, where=str(nothing))
    await logs.create()
    shards.rename(logs.folder / "elsewhere")
    shards.write_bytes(b"")
    with pytest.raises(StoreError):
        await logs.indexes.delete("logs")
    await logs.manager.seal_stream(logs.scope, "logs")
    done = await logs.run("stream", "delete", logs.scope, "logs", "--yes", code=1)
    assert f"{logs.scope}/logs" in done.output
    assert "--keep-objects" in done.stderr
    (row,) = await logs.json("search", "list", logs.scope)
    assert row["stopped"] == "being deleted"
    await logs.run("search", "delete", logs.scope, "logs", "--yes", "--keep-objects")
    assert await logs.indexes.list() == []


async def test_scope_delete_command_deletes_its_indexes(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(10)))
    async with logs.running():
        assert sorted(numbers(await all_hits(await logs.caught_up()))) == list(range(10))
    await logs.run("scope", "delete", logs.scope, "--yes", code=1)
    assert logs.objects() != []  # the scope has streams, so it and the index stay
    await logs.run("scope", "delete", logs.scope, "--recursive", "--yes")
    assert logs.objects() == []
    with pytest.raises(NotFoundError):
        await logs.manager.list_streams(logs.scope)


async def test_stream_delete_command_deletes_the_index_of_a_deleted_stream(logs: Indexed) -> None:
    await logs.indexed(map(event, range(10)))
    await logs.manager.seal_stream(logs.scope, "logs")
    await logs.manager.delete_stream(logs.scope, "logs")
    delete = ("stream", "delete", logs.scope, "logs", "--yes")
    await logs.run(*delete)
    assert logs.objects() == []
    await logs.run(*delete, code=1)


async def some(logs: Indexed) -> None:
    await logs.indexed(map(event, range(20)))
    await logs.indexes.create("unfit", "message:text", where=str(logs.folder / "shards"))


async def changed(logs: Indexed, key: bytes, value: bytes) -> bytes:
    table = logs.manager.table(logs.scope, "_search")
    held = await table.get(key)
    assert held is not None
    await table.put(key, value)
    return held.value


@pytest.mark.parametrize("says_where", [True, False])
async def test_unreadable_index_is_listed_and_deletable(logs: Indexed, says_where: bool) -> None:
    await some(logs)
    _, task = logs.start()
    held = await logs.manager.table(logs.scope, "_search").get(b"index/logs")
    assert held is not None
    newer = msgspec.json.encode(msgspec.json.decode(held.value) | {"fields": {"message": "text"}})
    await changed(logs, b"index/logs", newer if says_where else b"\xff{")
    assert [index.stream for index in await logs.indexes.list()] == ["unfit"]
    (bad,) = await logs.indexes.unreadable()
    assert bad.name == "logs"
    assert f"`nadi search delete {logs.scope} logs`" in bad.problem
    rows = await logs.json("search", "list", logs.scope)
    assert [(row["stream"], row["problem"]) for row in rows] == [("unfit", None), ("logs", bad.problem)]
    for ask in (logs.search, logs.status, lambda: logs.indexes.stop("logs"), logs.create, lambda: logs.start()[1]):
        with pytest.raises(ProtocolError):
            await ask()
    if not says_where:
        with pytest.raises(StoreError):
            await logs.indexes.delete("logs")
    assert logs.objects() != []
    leave = [] if says_where else ["--keep-objects"]
    await logs.run("search", "delete", logs.scope, "logs", "--yes", *leave)
    await asyncio.wait_for(task, 60)  # the running indexer continues until then
    if not says_where:  # objects that the running indexer hasn't deleted
        clean = ["search", "clean", "--index", f"file://{logs.folder}/shards", "--yes"]
        await logs.run(*clean)
    assert logs.objects() == []
    assert await logs.indexes.unreadable() == []
    with pytest.raises(IndexNotFoundError):
        await logs.indexes.get("logs")
    await logs.create()
    async with logs.running():
        assert len(await all_hits(await logs.caught_up())) == 20


async def test_unreadable_index_is_deleted_with_its_stream_and_scope(logs: Indexed) -> None:
    await some(logs)
    held = await logs.manager.table(logs.scope, "_search").get(b"index/logs")
    assert held is not None
    newer = msgspec.json.encode(msgspec.json.decode(held.value) | {"format": 7})
    await changed(logs, b"index/logs", newer)
    await logs.manager.seal_stream(logs.scope, "logs")
    done = await logs.run("stream", "delete", logs.scope, "logs", stdin=b"y\n")
    assert "search index" in done.stdout
    assert logs.objects() == []
    await changed(logs, b"index/unfit", b"")
    await logs.run("scope", "delete", logs.scope, "--recursive", "--yes", code=1)
    await logs.indexes.delete("unfit", keep_objects=True)
    await logs.run("scope", "delete", logs.scope, "--recursive", "--yes")


async def test_unreadable_standing_query_is_listed_and_removable(logs: Indexed) -> None:
    queries = StandingQueries(logs.manager, logs.scope)
    await logs.manager.create_stream(logs.scope, "hits")
    found = await queries.create("logs", "hits", fields="message:text")
    two = (await queries.add("logs", {"one": "a", "two": "b"}))[1]
    await changed(logs, f"standing-query/logs/{found.id}/{two.key}".encode(), b"\x81\xa1a\x01")
    assert [query.name for query in await queries.list("logs")] == ["one"]
    assert (await queries.status("logs")).queries == 2
    (bad,) = await queries.unreadable("logs")
    assert bad.name == "two"
    assert f"`nadi search standing remove {logs.scope} logs two`" in bad.problem
    await logs.write(map(event, range(10)))
    for ask in (lambda: serve_matcher(logs.manager, logs.scope, "logs"), lambda: queries.add("logs", {"three": "c"})):
        with pytest.raises(ProtocolError):
            await asyncio.wait_for(ask(), 60)
    rows = await logs.json("search", "standing", "list", logs.scope, "logs")
    assert [(row["name"], row["problem"]) for row in rows] == [("one", None), ("two", bad.problem)]
    await queries.remove("logs", ["one"])  # without the bad one in the way
    await queries.remove("logs", ["two"])
    assert (await queries.list("logs"), await queries.unreadable("logs")) == ([], [])
    await queries.add("logs", {"two": "b"})


async def test_unreadable_set_of_standing_queries_is_deletable(logs: Indexed) -> None:
    queries = StandingQueries(logs.manager, logs.scope)
    await logs.manager.create_stream(logs.scope, "hits")
    await queries.create("logs", "hits", fields="message:text")
    await queries.add("logs", {"one": "a"})
    await changed(logs, b"standing/logs", b"\xc1")
    for ask in (queries.get, queries.list, queries.status, queries.stop):
        with pytest.raises(ProtocolError):
            await ask("logs")
    with pytest.raises(AlreadyExistsError):
        await queries.create("logs", "hits", fields="message:text")
    await logs.run("search", "standing", "delete", logs.scope, "logs", "--yes")
    table = logs.manager.table(logs.scope, "_search")
    assert await table.get(b"standing/logs") is None
    await queries.create("logs", "hits", fields="message:text")
    assert await queries.list("logs") == []
