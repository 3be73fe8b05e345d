"""An index is dropped: nothing of it stays in its store, whoever is killed, or comes late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from nadi.errors import ConflictError, NotFoundError, StoreError, UnavailableError
from nadi.search import IndexNotFoundError
from nadi.search.shards.objects import Shards
from nadi.testing import RestartableServer
from tests.cli.test_streams import Shell
from tests.search.support import FIELDS, Indexed, all_hits, event, numbers

pytest.importorskip("tantivy", reason="search needs tantivy")


def objects(logs: Indexed) -> list[Path]:
    return [path for path in (logs.folder / "shards").rglob("*") if path.is_file() and ".nadi" not in path.parts]


async def test_dropped_while_indexers_work(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.search.indexing.indexer.SEARCH_COMMIT_S", 0.01)
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
        await logs.indexes.drop("logs")
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert objects(logs) == []
    writing.cancel()


async def test_one_that_is_killed_is_done_again(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    await logs.create()
    await logs.write(map(event, range(10)))
    async with logs.running():
        search = await logs.caught_up()

    async def killed(shards: Shards, names: Sequence[str]) -> None:
        raise ConnectionError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "delete", killed)
        with pytest.raises(ConnectionError):
            await logs.indexes.drop("logs")
    assert objects(logs) != []
    assert [one.is_dropped for one in await logs.indexes.list()] == [True]
    for ask in (search.query, logs.search, logs.status, lambda: logs.start()[1], lambda: logs.indexes.stop("logs")):
        with pytest.raises(IndexNotFoundError):
            await ask()
    with pytest.raises(ConflictError, match="being deleted: finish that with `nadi search delete`"):
        await logs.create()
    await logs.indexes.drop("logs")
    assert objects(logs) == []
    assert await logs.indexes.list() == []
    with pytest.raises(IndexNotFoundError):
        await logs.indexes.drop("logs")
    await logs.create()
    async with logs.running():
        assert len(await all_hits(await logs.caught_up())) == 10


async def test_an_indexer_that_comes_late(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.process.members.PROCESS_GONE_S", 0.3)
    monkeypatch.setattr("nadi.process.worker.PROCESS_BEAT_S", 60.0)  # as one that hangs
    put, is_putting, is_dropped = Shards.put, asyncio.Event(), asyncio.Event()

    async def late(shards: Shards, shard: str, parts: Sequence[bytes | memoryview]) -> None:
        is_putting.set()
        await is_dropped.wait()
        await put(shards, shard, parts)
        assert objects(logs) != []

    monkeypatch.setattr(Shards, "put", late)
    await logs.create()
    await logs.write(map(event, range(10)))
    _, task = logs.start()
    await asyncio.wait_for(is_putting.wait(), 60)
    await logs.indexes.drop("logs")
    await logs.create()  # another, which is not taken for the first
    is_dropped.set()
    await asyncio.wait_for(task, 60)
    assert objects(logs) == []


async def test_a_store_that_is_gone(logs: Indexed, nadi_server: RestartableServer) -> None:
    shards, nothing = logs.folder / "shards", logs.folder / "nothing"
    nothing.write_bytes(b"")
    with pytest.raises(UnavailableError):
        await logs.indexes.create("logs", FIELDS, where=str(nothing))
    await logs.create()
    shards.rename(logs.folder / "elsewhere")
    shards.write_bytes(b"")
    with pytest.raises(StoreError, match="--keep-objects"):
        await logs.indexes.drop("logs")
    await logs.manager.seal_stream(logs.scope, "logs")
    shell = Shell(nadi_server.controller_uri)
    done = await asyncio.to_thread(shell.run, "stream", "delete", logs.scope, "logs", "--yes", code=1)
    assert f"deleted stream {logs.scope}/logs" in done.output
    assert "--keep-objects" in done.stderr
    (row,) = await asyncio.to_thread(shell.json, "search", "list", logs.scope)
    assert row["stopped"] == "being deleted"
    await asyncio.to_thread(shell.run, "search", "delete", logs.scope, "logs", "--yes", "--keep-objects")
    assert await logs.indexes.list() == []


async def test_a_scope_takes_its_indexes_along(logs: Indexed, nadi_server: RestartableServer) -> None:
    await logs.create()
    await logs.write(map(event, range(10)))
    async with logs.running():
        assert sorted(numbers(await all_hits(await logs.caught_up()))) == list(range(10))
    shell = Shell(nadi_server.controller_uri)
    await asyncio.to_thread(shell.run, "scope", "delete", logs.scope, "--yes", code=1)
    assert objects(logs) != []  # it has streams: it stays, and so does the index
    await asyncio.to_thread(shell.run, "scope", "delete", logs.scope, "--recursive", "--yes")
    assert objects(logs) == []
    with pytest.raises(NotFoundError):
        await logs.manager.list_streams(logs.scope)


async def test_the_stream_went_before_its_index(logs: Indexed, nadi_server: RestartableServer) -> None:
    await logs.create()
    await logs.write(map(event, range(10)))
    async with logs.running():
        await logs.caught_up()
    await logs.manager.seal_stream(logs.scope, "logs")
    await logs.manager.delete_stream(logs.scope, "logs")
    shell = Shell(nadi_server.controller_uri)
    delete = ("stream", "delete", logs.scope, "logs", "--yes")
    assert "deleted what it had left, its search index" in (await asyncio.to_thread(shell.run, *delete)).stdout
    assert objects(logs) == []
    assert "there was no stream" in (await asyncio.to_thread(shell.run, *delete, code=1)).stderr
