"""When a program deletes a scope, its shards are deleted by a running indexer or `nadi search clean`. Objects of other
indexes are kept, and old events aren't found after the scope is recreated."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import nadi
from nadi.client.aio import StreamManager
from nadi.errors import NotFoundError, UnavailableError
from nadi.process.segment_follower import check_same
from nadi.search import backfill_parts
from nadi.search import objects as labelling
from nadi.search.objects import LABELS, Label
from nadi.search.shards.manifest import new_name
from tests.search.support import Indexed, all_hits, event, numbers
from tests.support.waiting import until_async

pytest.importorskip("tantivy", reason="search needs tantivy")


def label(logs: Indexed) -> Path:
    (found,) = (logs.folder / "shards" / LABELS).iterdir()
    return found


def relabel(logs: Indexed, **changes: str) -> Label:
    """Change the label; return the old one."""
    path = label(logs)
    previous = msgspec.json.decode(path.read_bytes(), type=Label)
    path.unlink()
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(previous, **changes)))
    return previous


async def test_indexer_deletes_shards_of_a_deleted_scope(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("limits.SEARCH_SCOPE_S", "process.runner.PROCESS_END_S"):
        monkeypatch.setattr(f"nadi.{limit}", 60.0)  # the scope may be deleted long after the stream
    is_gone = asyncio.Event()

    async def later(*args: Any) -> None:
        """Without this, both may end between the stream's seal and its deletion, and delete nothing."""
        await is_gone.wait()
        await check_same(*args)

    monkeypatch.setattr("nadi.search.indexing.check_same", later)
    await logs.indexed(map(event, range(20)))
    tasks = [logs.start()[1] for _ in range(2)]
    await logs.write(map(event, range(20)))
    await logs.caught_up()
    await logs.manager.delete_scope(logs.scope, recursive=True)
    is_gone.set()
    for end in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60):
        assert end is None or isinstance(end, NotFoundError)  # either may be noticed first
    assert logs.objects() == []


async def test_indexer_keeps_shards_of_a_defined_index(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.limits.SEARCH_SCOPE_S", 0.5)
    await logs.indexed(map(event, range(20)))
    mine = logs.objects()
    _, task = logs.start()
    await logs.manager.seal_stream(logs.scope, "logs")
    await logs.manager.delete_stream(logs.scope, "logs")
    with suppress(NotFoundError):  # unless it has seen the stream's end before
        await asyncio.wait_for(task, 60)
    assert logs.objects() == mine
    await logs.indexes.delete("logs")
    assert logs.objects() == []


async def test_indexer_keeps_shards_of_another_server(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server with other data may answer at the address now."""
    monkeypatch.setattr("nadi.limits.SEARCH_SCOPE_S", 1.0)
    await logs.indexed(map(event, range(20)))
    relabel(logs, server="0")
    mine = logs.objects()
    _, task = logs.start()
    await logs.caught_up()
    await logs.manager.delete_scope(logs.scope, recursive=True)
    with suppress(NotFoundError):
        await asyncio.wait_for(task, 60)
    assert logs.objects() == mine


@pytest.mark.parametrize("whose", ["its own", "another server's", "damaged"])
async def test_indexer_deletes_orphans_only_in_its_own_folder(
    whose: str, logs: Indexed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Use the same rule as `nadi search clean`."""
    monkeypatch.setattr("nadi.limits.SEARCH_ORPHAN_S", 0.0)
    monkeypatch.setattr("nadi.limits.SEARCH_TIDY_S", 0.05)
    await logs.indexed(map(event, range(20)))
    whole = relabel(logs, **({"server": "0"} if whose == "another server's" else {}))
    if whose == "damaged":
        label(logs).write_bytes(b"\xff{")
    orphan = logs.folder / "shards" / "search" / whole.folder / new_name()
    orphan.write_bytes(b"x")
    async with logs.running():
        if whose == "its own":
            await until_async(lambda: not orphan.exists())
            return
        warnings = {"another server's": "it belongs to another server", "damaged": "can't read the label"}
        await until_async(lambda: warnings[whose] in caplog.text)
        await asyncio.sleep(0.3)
    assert orphan.exists()
    assert caplog.text.count("belongs to another server") <= 1, "logged once"


async def test_clean_lists_and_deletes_orphaned_shards(logs: Indexed) -> None:
    await logs.indexed(map(event, range(20)))
    await logs.manager.delete_scope(logs.scope, recursive=True)
    assert logs.objects() != []
    await logs.manager.create_scope(logs.scope)
    await logs.manager.create_stream(logs.scope, "logs", 2)
    await logs.create()
    await logs.write(map(event, range(100, 105)))
    async with logs.running():
        assert sorted(numbers(await all_hits(await logs.caught_up()))) == list(range(100, 105))
    where = str(logs.folder / "shards")
    (left,) = await labelling.find(logs.manager, where)
    assert (left.scope, left.stream, left.why_retained) == (logs.scope, "logs", "")
    kept = {path for path in logs.objects() if left.folder not in str(path)}
    assert 0 < left.shards == len(logs.objects()) - len(kept) - 1
    rows = await logs.json("search", "clean", "--index", where, "--dry-run")
    assert [(row["stream"], row["bytes"]) for row in rows] == [("logs", left.size_bytes)]
    asked = await logs.run("search", "clean", "--index", where, stdin=b"n\n", code=1)
    assert f"{left.shards:,}" in asked.stdout
    assert len(logs.objects()) > len(kept)
    done = await logs.run("search", "clean", "--index", where, "--yes")
    assert f"{left.size_bytes:,}" in done.stderr
    assert set(logs.objects()) == kept
    await logs.run("search", "clean", "--index", where, "--yes")
    assert set(logs.objects()) == kept
    assert sorted(numbers(await all_hits(await logs.search()))) == list(range(100, 105))


async def test_clean_keeps_folders_of_others(logs: Indexed, tmp_path: Path) -> None:
    await logs.indexed(map(event, range(20)))
    mine = logs.objects()
    where = str(logs.folder / "shards")
    with nadi.embedded(tmp_path / "other") as other:  # has the same scope and stream, but not the index
        async with StreamManager(other.controller_uri) as manager:
            await manager.create_scope(logs.scope)
            await manager.create_stream(logs.scope, "logs")
            assert [bool(one.why_retained) for one in await labelling.find(manager, where)] == [True]
            assert await labelling.find(manager, where, delete=True) == []
            assert await labelling.identity(manager) != await labelling.identity(logs.manager)
    assert await labelling.find(logs.manager, where) == []
    assert await labelling.find(logs.manager, where, delete=True) == []
    assert logs.objects() == mine

    await logs.manager.delete_scope(logs.scope, recursive=True)
    path = label(logs)
    whole = msgspec.json.decode(path.read_bytes(), type=Label)
    precious = logs.folder / "shards" / "search" / "precious"
    precious.mkdir()
    (precious / "x").write_bytes(b"mine")
    for data in (
        b"\xff{",
        b'{"x":' + b"[" * 1_500 + b"]" * 1_500 + b"}",
        msgspec.json.encode(msgspec.structs.replace(whole, stream="others")),
        msgspec.json.encode({**msgspec.to_builtins(whole), "id": "../../precious"}),
        msgspec.json.encode(msgspec.structs.replace(whole, server="0")),
        None,
    ):
        path.unlink()
        if data is not None:
            path.write_bytes(data)
        (left,) = await labelling.find(logs.manager, where)
        assert left.why_retained
        assert await labelling.find(logs.manager, where, delete=True) == []
        assert {one for one in mine if one != path} <= set(logs.objects())
        path.write_bytes(b"")
    path.write_bytes(msgspec.json.encode(whole))
    assert len(await labelling.find(logs.manager, where, delete=True)) == 1
    assert logs.objects() == [precious / "x"]


async def test_delete_if_gone_deletes_late_shards(logs: Indexed) -> None:
    await logs.indexed(map(event, range(20)))
    definition = await logs.indexes.get("logs")
    shards = (labelling.labelled_shards(logs.manager, logs.scope, definition) for _ in range(2))
    async with next(shards) as one, next(shards) as two:
        assert not await labelling.delete_if_orphaned(logs.manager, one, 0.0)
        await logs.manager.delete_scope(logs.scope, recursive=True)
        assert await labelling.delete_if_orphaned(logs.manager, one, 0.0)
        assert logs.objects() == []
        await two.put(new_name(), [b"late"])
        assert await labelling.delete_if_orphaned(logs.manager, two, 0.0)
        assert logs.objects() == []


async def test_clean_keeps_other_files(logs: Indexed, tmp_path: Path) -> None:
    """The folder of an index may also be a link, such as to another disk."""
    await logs.indexed(map(event, range(20)))
    (folder,) = (logs.folder / "shards" / "search").iterdir()
    elsewhere = folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(elsewhere)
    stranger = elsewhere / "READ ME.txt"
    stranger.write_bytes(b"mine")
    (elsewhere / "0001-precious").write_bytes(b"mine")
    await logs.manager.delete_scope(logs.scope, recursive=True)
    (left,) = await labelling.find(logs.manager, str(logs.folder / "shards"))
    assert left.shards == len([*elsewhere.iterdir()]) - 2
    assert await labelling.find(logs.manager, str(logs.folder / "shards"), delete=True) == [left]
    assert {path.name for path in elsewhere.iterdir()} == {"READ ME.txt", "0001-precious"}
    assert await labelling.find(logs.manager, str(logs.folder / "shards")) == []


async def test_clean_fails_if_another_server_answers(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity of the previous server may already have been read."""
    await logs.indexed(map(event, range(20)))
    await logs.manager.delete_scope(logs.scope, recursive=True)
    mine = logs.objects()

    really, calls = labelling.identity, 0

    async def another_then(manager: StreamManager) -> str:
        nonlocal calls
        calls += 1
        return await really(manager) if calls % 2 else "0"

    monkeypatch.setattr(labelling, "identity", another_then)
    for delete in (False, True):
        with pytest.raises(UnavailableError):
            await labelling.find(logs.manager, str(logs.folder / "shards"), delete=delete)
    assert logs.objects() == mine


async def test_clean_misspelt_folder_fails(logs: Indexed) -> None:
    misspelt = logs.folder / "shrads"
    await logs.run("search", "clean", "--index", str(misspelt), "--dry-run", code=1)
    assert not misspelt.exists()
    misspelt.mkdir()
    with pytest.raises(NotFoundError):
        await labelling.find(logs.manager, str(misspelt), delete=True)
    assert [*misspelt.iterdir()] == []


async def test_clean_keeps_shards_of_an_unreadable_definition(logs: Indexed) -> None:
    await logs.indexed(map(event, range(20)))
    where = str(logs.folder / "shards")
    table = logs.manager.table(logs.scope, "_search")
    held = await table.get(b"index/logs")
    assert held is not None
    for value in (b"\xff{", msgspec.json.encode(msgspec.json.decode(held.value) | {"format": 7})):
        await table.put(b"index/logs", value)
        assert await labelling.find(logs.manager, where) == []
        assert await labelling.find(logs.manager, where, delete=True) == []
    await table.put(b"index/logs", b"\xff{")
    await logs.indexes.delete("logs", keep_objects=True)
    assert len(await labelling.find(logs.manager, where, delete=True)) == 1
    assert logs.objects() == []


async def test_folders_of_earlier_indexers_and_of_the_past_are_labelled(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(20)))

    def index() -> None:
        with nadi.StreamManager(logs.uri) as manager:
            for part in backfill_parts(manager, logs.scope, "logs"):
                part.index()

    await asyncio.to_thread(index)
    label(logs).unlink()
    (unlabelled,) = await labelling.find(logs.manager, str(logs.folder / "shards"))
    assert unlabelled.why_retained
    stop, task = logs.start()
    await until_async(lambda: any((logs.folder / "shards" / LABELS).iterdir()))
    stop.set()
    await task
    assert await labelling.find(logs.manager, str(logs.folder / "shards")) == []
    await logs.indexes.delete("logs")
    assert logs.objects() == []


async def test_server_identity_survives_a_restart(tmp_path: Path) -> None:
    found = set()
    for _ in range(2):
        with nadi.embedded(tmp_path / "data") as server:
            async with StreamManager(server.controller_uri) as one, StreamManager(server.controller_uri) as two:
                found |= set(await asyncio.gather(*map(labelling.identity, [one, two])))
    assert len(found) == 1
    assert None not in found
