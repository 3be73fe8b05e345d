"""With any content of a table, store or cache, a query is right or raises an error, and other data is neither shown nor
deleted."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

import httpx
import msgspec
import pytest

import nadi
from nadi.errors import ClosedError, ProtocolError, StoreError, StreamNotFoundError
from nadi.search import IndexNotFoundError, indexes, run
from nadi.search.definition import Definitions
from nadi.search.searching.shard_cache import CachedShards
from nadi.search.shards.manifest import folder_of_index, new_index, new_name
from nadi.web.searching import _CachedSearch, _forget
from tests.search.support import Indexed, event, numbers
from tests.web.support import error_of

pytest.importorskip("tantivy", reason="search needs tantivy")


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


async def some(logs: Indexed, count: int = 20, batches: int = 1) -> None:
    await logs.create()
    async with logs.running():
        for first in range(0, count, count // batches):
            await logs.write(map(event, range(first, first + count // batches)))
            await logs.caught_up()


async def rewritten(logs: Indexed, **changes: object) -> None:
    table = logs.manager.table(logs.scope, "_search")
    held = await table.get(b"index/logs")
    assert held is not None
    changed = msgspec.json.decode(held.value) | changes
    await table.put(b"index/logs", msgspec.json.encode(changed))


async def test_forged_names_in_the_table_are_rejected(logs: Indexed) -> None:
    await some(logs)
    definitions = Definitions(logs.manager, logs.scope)
    known = await definitions.get("logs")
    manifest = await definitions.manifest(known).get()
    precious = logs.folder / "precious"
    precious.mkdir()
    (precious / "old").write_text("mine")
    os.utime(precious / "old", (1, 1))
    for wrong in (str(precious), "../precious", known.id + "\n", known.id.upper() + "A", ""):
        await rewritten(logs, id=wrong)
        with pytest.raises(ProtocolError):
            await logs.search()
    await rewritten(logs, id=known.id, stream="unfit")
    with pytest.raises(ProtocolError):
        await logs.search()
    await rewritten(logs, id=known.id, stream="logs")
    shard, *_ = manifest.shards
    for made in (
        msgspec.structs.replace(manifest, shards=[msgspec.structs.replace(shard, id="../../precious")]),
        msgspec.structs.replace(manifest, retired={str(precious): 0}),
        msgspec.structs.replace(manifest, segments={}),
        msgspec.structs.replace(manifest, past=[(7, 0, 5)]),
    ):
        await definitions.manifest(known).change(lambda _, made=made: made)  # type: ignore[misc]
        with pytest.raises(ProtocolError):
            await (await logs.search()).query("")
        table = logs.manager.table(logs.scope, "_search")
        await table.remove(f"manifest/logs/{known.id}".encode())
        await table.put(f"manifest/logs/{known.id}".encode(), manifest.encode())
    assert (precious / "old").read_text() == "mine"
    await logs.manager.table(logs.scope, "_search").put(b"index/logs", b'{"stream": "\xff"}')
    with pytest.raises(ProtocolError):
        await logs.search()


async def test_copied_index_id_reads_no_foreign_shards(logs: Indexed) -> None:
    await some(logs)
    await logs.search()
    await logs.manager.create_stream(logs.scope, "mine")
    definitions = Definitions(logs.manager, logs.scope)
    known = await definitions.get("logs")
    table = logs.manager.table(logs.scope, "_search")
    manifest = await table.get(f"manifest/logs/{known.id}".encode())
    assert manifest is not None
    stolen = msgspec.json.encode(msgspec.structs.replace(known, stream="mine"))
    await table.put(b"index/mine", stolen)
    await table.put(f"manifest/mine/{known.id}".encode(), manifest.value)
    cache = logs.folder / "cache"
    ours = await logs.indexes.open("logs", cache=cache)
    assert await ours.count(by="level") == {"info": 20}
    theirs = await logs.indexes.open("mine", cache=cache)
    with pytest.raises(StoreError, match="file:"):
        await theirs.count(by="level")
    theirs.close()
    await logs.indexes.delete("mine")
    assert logs.objects("search")
    assert await ours.count(by="level") == {"info": 20}
    ours.close()


def test_cache_clean_deletes_only_cached_shards(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    ours, other = (folder_of_index("home", "logs", new_index()) for _ in range(2))
    old_shard, young_shard = f"{1:013d}-{'a' * 32}", new_name()
    kept = [f"{ours}/{young_shard}/x", f"{ours}/notes/x", f"{ours}/.open-1-ab/x", "photos/x", f"{other}/notes/x"]
    gone = [f"{ours}/{old_shard}/x", f"{ours}/.new-abc/x", f"{ours}/.open-999999999-ab/x", f"{other}/{young_shard}/x"]
    for name in (*kept, *gone):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("")
    (root / ours / f"{2:013d}-{'b' * 32}").symlink_to(outside)
    for folder in [*root.rglob("*"), root]:
        if (folder.is_dir() and folder.name != young_shard) or folder == root / other / young_shard:
            os.utime(folder, (1, 1), follow_symlinks=False)
    CachedShards(root, ours).clean([])
    assert [name for name in (*kept, *gone) if (root / name).exists()] == kept
    assert (outside / "x").exists()
    CachedShards(root, ours).discard()
    assert (root / ours / "notes" / "x").exists()
    assert not (root / ours / young_shard).exists()


async def test_damaged_cache_is_fetched_again(logs: Indexed) -> None:
    await some(logs, 200)
    cache = logs.folder / "own"

    async def found() -> list[int]:
        search = await logs.indexes.open("logs", cache=cache)
        try:
            return numbers((await search.query("group3", limit=100)).hits)
        finally:
            search.close()

    right = await found()
    assert len(right) == 20
    for number, path in enumerate(files_of(cache)):
        whole = path.read_bytes()
        flipped = bytearray(whole)
        if flipped:
            flipped[len(flipped) * number // 11 % len(flipped)] ^= 1 << number % 8
        for damaged in (bytes(flipped) or b"x", whole[:-1], None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            assert await found() == right, path.name
            assert path.read_bytes() == whole


async def test_lost_or_damaged_shard_raises_store_error(logs: Indexed) -> None:
    await some(logs)
    shard, *_ = logs.objects("search")
    data = shard.read_bytes()
    for damaged in (b"", data[:5], data[:16], data[:40], data[:-1], data[:30] + b"!" + data[31:]):
        shard.write_bytes(damaged)
        with pytest.raises(StoreError):
            await (await logs.search()).query("")
    shard.unlink()
    search = await logs.search()
    with pytest.raises(StoreError, match="file:"):
        await search.query("")
    shard.write_bytes(data)
    assert (await search.query("")).count == 20


async def test_shards_that_can_not_be_merged_are_left_out(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.search.indexing._LEAST_MERGED", 100)
    await some(logs, 8, 8)
    monkeypatch.undo()
    gone, damaged, *_ = logs.objects("search")
    gone.unlink()
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    async with logs.running():
        for number in range(8, 12):
            await logs.write([event(number)])
            await (await logs.search()).wait("tail", 60.0)
        await logs.until_shards(3, 3 + 4)
    with pytest.raises(StoreError):
        await (await logs.search()).query("")


async def test_closed_search_releases_its_files(logs: Indexed) -> None:
    await some(logs)
    before = len(os.listdir("/proc/self/fd"))
    cache = logs.folder / "own"
    for _ in range(10):
        search = await logs.indexes.open("logs", cache=cache)
        assert (await search.query("")).count == 20
        search.close()
        for use in (search.query(""), search.count("")):
            with pytest.raises(ClosedError):
                await use
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert list((logs.folder / "shards" / ".nadi" / "unfinished").iterdir()) == []
    search = await logs.indexes.open("logs", cache=cache)
    await search.query("")
    await logs.indexes.delete("logs")
    with pytest.raises(IndexNotFoundError):
        await search.query("")
    assert files_of(cache) == []
    with pytest.raises(IndexNotFoundError):
        await logs.search()
    with pytest.raises(StreamNotFoundError):
        await logs.indexes.open("nothing")


def test_cached_search_is_closed_when_unused() -> None:
    closed = []

    class Asked:
        def close(self) -> None:
            closed.append(self)

    busy, idle = _CachedSearch(Asked(), 1), _CachedSearch(Asked())  # type: ignore[arg-type]
    known = OrderedDict({("home", "busy"): busy, ("home", "idle"): idle})
    _forget(known, "home", "busy")
    _forget(known, "home", "idle")
    assert not known
    assert list(map(id, closed)) == [id(idle.search)]
    busy.active -= 1
    busy.close_if_idle()
    assert list(map(id, closed)) == [id(idle.search), id(busy.search)]


def test_a_server_keeps_to_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "old").write_text("mine")
    os.utime(victim / "old", (1, 1))
    environment = {"NADI_REST_SEARCH": f"{tmp_path}/allowed", "NADI_SEARCH_CACHE": str(tmp_path / "cache")}
    with (
        nadi.embedded(tmp_path / "data", rest_port=0, environment=environment) as server,
        nadi.StreamManager(server.controller_uri) as manager,
        httpx.Client(base_url=server.rest_uri, timeout=60) as rest,
    ):
        manager.create_scope("home")
        manager.create_stream("home", "logs")
        with manager.create_writer("home", "logs") as writer:
            writer.write_event(event(1))
        manager.seal_stream("home", "logs")
        found = indexes(manager, "home")
        made = found.create("logs", "message:text,level:keyword", where=str(tmp_path / "allowed"))
        run("home", "logs", server.controller_uri)
        path = "/v1/data/home/streams/logs/search"
        assert rest.get(path).json()["count"] == 1
        assert files_of(tmp_path / "cache")
        table = manager.table("home", "_search")
        held, manifest = table.get(b"index/logs"), table.get(f"manifest/logs/{made.id}".encode())
        assert held is not None
        assert manifest is not None
        table.put(b"index/logs", held.value.replace(made.id.encode(), str(victim).encode()))
        table.put(f"manifest/logs/{victim}".encode(), manifest.value)
        assert "home/logs" in error_of(rest.get(path), 500)
        assert (victim / "old").read_text() == "mine"
        table.put(b"index/logs", held.value)
        assert rest.get(path).json()["count"] == 1
        found.delete("logs")
        assert "home/logs" in error_of(rest.get(path), 404)
        assert files_of(tmp_path / "cache") == []
        assert "home/nothing" in error_of(rest.get(path.replace("logs", "nothing")), 404)
