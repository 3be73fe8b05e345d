"""A record that is damaged or from a newer nadi is listed with its problem, fails to be shown, and can be deleted."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

import nadi
import nadi.lake
import nadi.search
from nadi.cli.app import app
from nadi.errors import NotFoundError, ProtocolError
from tests.cli.test_streams import Shell

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "wrong format": lambda record: b"\xc1{",
    "not UTF-8": lambda record: b'{"stream": "\xff"}',
    "wrong type": lambda record: msgspec.json.encode(msgspec.json.decode(record) | {"made_ms": {"at": 1}}),
    "invalid time": lambda record: msgspec.json.encode(msgspec.json.decode(record) | {"made_ms": 1 << 60}),
}


@pytest.fixture(scope="module", autouse=True)
def meters(manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "meters")


@pytest.fixture
def scanned(manager: nadi.StreamManager) -> Iterator[None]:
    manager.create_scope("scanned")
    yield
    manager.delete_scope("scanned", recursive=True)


def make(manager: nadi.StreamManager, kind: str, name: str) -> None:
    cuts = manager.cuts("home", "meters")
    if kind == "bookmark":
        manager.bookmarks("home").create(name, cuts.tail(), tags=["t"])
    elif kind == "slice":
        manager.slices("home").create(name, cuts.head(), cuts.tail())
    else:
        manager.stream_tables("home").define(name, stream="meters", value_schema="meter string, wh long")


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize(
    ("kind", "place", "key"),
    [
        ("bookmark", "_bookmarks", "bookmark"),
        ("slice", "_bookmarks", "slice"),
        ("stream-table", "_streamtables", "table"),
    ],
)
def test_unreadable_record_is_listed_and_can_be_deleted(
    server: nadi.standalone.EmbeddedServer,
    manager: nadi.StreamManager,
    shell: Shell,
    kind: str,
    place: str,
    key: str,
    how: str,
) -> None:
    for name in ("one", "two", "three"):
        make(manager, kind, name)
    table = manager.table("home", place)
    stored = table.get(f"{key}/two".encode())
    assert stored is not None
    table.put(f"{key}/two".encode(), DAMAGE[how](stored.value))
    catalog: Any = {
        "bookmark": manager.bookmarks("home"),
        "slice": manager.slices("home"),
        "stream-table": manager.stream_tables("home"),
    }[kind]
    assert [record.name for record in catalog.list()] == ["one", "three"]
    (bad,) = catalog.unreadable()
    assert bad.name == "two"
    assert f"`nadi {kind} delete home two`" in bad.problem
    with pytest.raises(ProtocolError, match="home/two"):
        catalog.get("two")
    rows = shell.json(kind, "list", "home")
    assert [row.get("name", row.get("table")) for row in rows] == ["one", "three", "two"]
    assert [row["problem"] for row in rows] == [None, None, bad.problem]
    assert "home/two" in "".join(shell.run(kind, "list", "home").stdout.split())
    assert "home/two" in shell.run(kind, "show", "home", "two", code=1).stderr
    answer = httpx.get(f"{server.rest_uri}/v1/data/home/unreadable", timeout=60).json()
    assert answer == [{"kind": kind.replace("-", " "), "name": "two", "problem": bad.problem}]
    shell.run(kind, "delete", "home", "two")
    assert catalog.unreadable() == []
    for name in ("one", "three"):
        shell.run(kind, "delete", "home", name)


def test_problem_of_an_unreadable_record_is_short(manager: nadi.StreamManager) -> None:
    """Writers of the table could otherwise fill lists with long texts."""
    make(manager, "bookmark", "one")
    table = manager.table("home", "_bookmarks")
    stored = table.get(b"bookmark/one")
    assert stored is not None
    table.put(b"bookmark/one", msgspec.json.encode(msgspec.json.decode(stored.value) | {"stream": "x" * 500_000}))
    (bad,) = manager.bookmarks("home").unreadable()
    assert "home/xxx" in bad.problem
    assert len(bad.problem) < 1_000
    assert manager.bookmarks("home").delete("one")


def test_control_characters_in_names_are_escaped(manager: nadi.StreamManager, shell: Shell) -> None:
    make(manager, "bookmark", "one")
    manager.table("home", "_bookmarks").put(b"bookmark/\x1b[2J", b"?")
    (bad,) = manager.bookmarks("home").unreadable()
    assert "`nadi bookmark delete home '\x1b[2J'`" in bad.problem
    output = shell.run("bookmark", "delete", "home", "\x1b[2J", "--yes").output
    assert output == r"deleted bookmark home/\x1b[2J; the events stay" + "\n"
    assert manager.bookmarks("home").delete("one")


def test_bookmark_with_invalid_cuts_is_unreadable(manager: nadi.StreamManager) -> None:
    make(manager, "bookmark", "odd")
    table = manager.table("home", "_bookmarks")
    stored = table.get(b"bookmark/odd")
    assert stored is not None
    record = msgspec.json.decode(stored.value)
    for cuts in ([], [*record["cuts"], *record["cuts"]], ["no cut"]):
        table.put(b"bookmark/odd", msgspec.json.encode(record | {"cuts": cuts}))
        assert [bad.name for bad in manager.bookmarks("home").unreadable()] == ["odd"]
    table.put(b"bookmark/odd", msgspec.json.encode(record | {"stream": "others"}))
    with pytest.raises(ProtocolError, match="home/meters"):
        manager.bookmarks("home").rename("odd", "even")
    with pytest.raises(ProtocolError):
        manager.bookmarks("home").tag("odd", ["t"])
    assert manager.bookmarks("home").delete("odd")


@pytest.mark.parametrize(
    ("walks", "command"),
    [
        ("nadi.client.tables.catalog.entries_of", ["bookmark", "list", "scanned"]),
        ("nadi.client.tables.catalog.entries_of", ["slice", "list", "scanned"]),
        ("nadi.client.tables.catalog.entries_of", ["stream-table", "list", "scanned"]),
        ("nadi.client.tables.catalog.entries_of", ["search", "list", "scanned"]),
        ("nadi.client.tables.catalog.entries_of", ["search", "standing", "list", "scanned", "logs"]),
        ("nadi.lake.definition.readable", ["lake", "list", "scanned"]),
        ("nadi.functions.progress.readable", ["function", "list", "scanned"]),
    ],
    ids=lambda value: " ".join(value[:-1]) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("scanned")
def test_list_reads_the_table_once(
    manager: nadi.StreamManager,
    server: nadi.standalone.EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    walks: str,
    command: list[str],
) -> None:
    if command[0] == "search":
        pytest.importorskip("tantivy", reason="search needs tantivy")
        manager.create_stream("scanned", "logs")
        nadi.search.indexes(manager, "scanned").create("logs", "message:text", where=str(tmp_path))
        if "standing" in command:
            manager.create_stream("scanned", "hits")
            nadi.search.standing_queries(manager, "scanned").create("logs", "hits")
    count, (module, _, walk) = 0, walks.rpartition(".")
    original = getattr(importlib.import_module(module), walk)

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return original(*arguments)

    monkeypatch.setattr(walks, counted)
    ran = CliRunner().invoke(app, [*command, "--controller", server.controller_uri])
    assert ran.exit_code == 0, ran.output
    assert count == 1


@pytest.mark.parametrize("kind", ["lake", "function"])
def test_unreadable_lake_or_function_is_listed_and_can_be_deleted(
    manager: nadi.StreamManager, shell: Shell, kind: str
) -> None:
    if kind == "lake":
        catalog = ("--catalog", "type=sql", "--catalog", "uri=sqlite:////nowhere/catalog.db")
        for stream in ("whole", "bad"):
            manager.create_stream("home", stream)
            output = shell.run("lake", "create", "home", stream, "--table", "home.meters", *catalog).output
            assert f"`nadi lake run home {stream}`" in output
        (shown,) = shell.json("lake", "show", "home", "whole-lake")
        assert (shown["table"], shown["catalog"]) == ("home.meters", "type=sql, uri=sqlite:////nowhere/catalog.db")
    else:
        from nadi.functions.progress import FunctionRecord

        for name in ("whole-function", "bad-function"):
            manager.reader_group_manager("home").create_reader_group(name, "meters")
            record = FunctionRecord(name, "home/meters", "x")
            manager.table("home", f"_RG{name}").put(b"function", msgspec.msgpack.encode(record))
    name = f"bad-{kind}"
    manager.table("home", f"_RG{name}").put(kind.encode(), msgspec.msgpack.encode({"definition": 7}))
    rows = shell.json(kind, "list", "home")
    assert [row[kind] for row in rows] == [f"whole-{kind}", name]
    assert f"nadi {kind} delete" in rows[1]["problem"]
    if kind == "lake":
        readable, unreadable = nadi.lake.lakes_of(manager, "home")
        assert (list(readable), [bad.name for bad in unreadable]) == (["whole-lake"], [name])
        assert name in shell.run("lake", "status", "home", name, code=1).stderr
        assert "whole-lake" in shell.run("stream", "delete", "home", "whole", stdin=b"n\n", code=1).output
    else:
        assert name in shell.run("function", "status", "home", name, code=1).stderr
    refused = shell.run("group", "delete", "home", name, "--yes", code=1).stderr.replace("\n", " ")
    assert f"`nadi {kind} delete home {name}`" in refused
    shell.run(kind, "delete", "home", name, "--yes")
    assert [row[kind] for row in shell.json(kind, "list", "home")] == [f"whole-{kind}"]
    shell.run("group", "delete", "home", f"whole-{kind}", "--force", "--yes")
    assert shell.json(kind, "list", "home") == []
    with pytest.raises(NotFoundError):
        manager.reader_group_manager("home").get_reader_group(name)
