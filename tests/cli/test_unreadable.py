"""A record that is damaged, or of a newer nadi, hides no other in a list: it is named there, is an error for whoever
asks for it, and can be deleted."""

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

TAKEN_APART: dict[str, Callable[[bytes], bytes]] = {
    "none of the format": lambda whole: b"\xc1{",
    "not UTF-8": lambda whole: b'{"stream": "\xff"}',
    "of other types": lambda whole: msgspec.json.encode(msgspec.json.decode(whole) | {"made_ms": {"at": 1}}),
    "of no time there is": lambda whole: msgspec.json.encode(msgspec.json.decode(whole) | {"made_ms": 1 << 60}),
}


@pytest.fixture(scope="module", autouse=True)
def meters(manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "meters")


@pytest.fixture
def walked(manager: nadi.StreamManager) -> Iterator[None]:
    manager.create_scope("walked")
    yield
    manager.delete_scope("walked", recursive=True)


def make(manager: nadi.StreamManager, kind: str, name: str) -> None:
    cuts = manager.cuts("home", "meters")
    if kind == "bookmark":
        manager.bookmarks("home").create(name, cuts.tail(), tags=["t"])
    elif kind == "slice":
        manager.slices("home").create(name, cuts.head(), cuts.tail())
    else:
        manager.stream_tables("home").define(name, stream="meters", value_schema="meter string, wh long")


@pytest.mark.parametrize("how", TAKEN_APART)
@pytest.mark.parametrize(
    ("kind", "place", "key"),
    [
        ("bookmark", "_bookmarks", "bookmark"),
        ("slice", "_bookmarks", "slice"),
        ("stream-table", "_streamtables", "table"),
    ],
)
def test_what_has_a_name(
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
    held = table.get(f"{key}/two".encode())
    assert held is not None
    table.put(f"{key}/two".encode(), TAKEN_APART[how](held.value))
    kept: Any = {
        "bookmark": manager.bookmarks("home"),
        "slice": manager.slices("home"),
        "stream-table": manager.stream_tables("home"),
    }[kind]
    assert [one.name for one in kept.list()] == ["one", "three"]
    (bad,) = kept.unreadable()
    assert bad.name == "two"
    assert f"`nadi {kind} delete home two`" in bad.problem
    with pytest.raises(ProtocolError, match="home/two can't be read"):
        kept.get("two")
    rows = shell.json(kind, "list", "home")
    assert [row.get("name", row.get("table")) for row in rows] == ["one", "three", "two"]
    assert [row["problem"] for row in rows] == [None, None, bad.problem]
    assert "can't be read" in shell.run(kind, "list", "home").stdout
    assert "can't be read" in shell.run(kind, "show", "home", "two", code=1).stderr
    answer = httpx.get(f"{server.rest_uri}/v1/data/home/unreadable", timeout=60).json()
    assert answer == [{"kind": kind.replace("-", " "), "name": "two", "problem": bad.problem}]
    shell.run(kind, "delete", "home", "two")
    assert kept.unreadable() == []
    for name in ("one", "three"):
        shell.run(kind, "delete", "home", name)


def test_what_is_wrong_is_said_in_few_words(manager: nadi.StreamManager) -> None:
    """Whoever may write there could make lists of records that say much."""
    make(manager, "bookmark", "one")
    table = manager.table("home", "_bookmarks")
    held = table.get(b"bookmark/one")
    assert held is not None
    table.put(b"bookmark/one", msgspec.json.encode(msgspec.json.decode(held.value) | {"stream": "x" * 500_000}))
    (bad,) = manager.bookmarks("home").unreadable()
    assert "not to home/xxx" in bad.problem
    assert len(bad.problem) < 1_000
    assert manager.bookmarks("home").delete("one")


def test_a_name_that_moves_a_terminal_is_printed_as_escapes(manager: nadi.StreamManager, shell: Shell) -> None:
    make(manager, "bookmark", "one")
    manager.table("home", "_bookmarks").put(b"bookmark/\x1b[2J", b"?")
    (bad,) = manager.bookmarks("home").unreadable()
    assert "`nadi bookmark delete home '\x1b[2J'`" in bad.problem
    told = shell.run("bookmark", "delete", "home", "\x1b[2J", "--yes").output
    assert told == r"deleted bookmark home/\x1b[2J; the events stay" + "\n"
    assert manager.bookmarks("home").delete("one")


def test_cuts_of_another_stream(manager: nadi.StreamManager) -> None:
    make(manager, "bookmark", "odd")
    table = manager.table("home", "_bookmarks")
    held = table.get(b"bookmark/odd")
    assert held is not None
    whole = msgspec.json.decode(held.value)
    for cuts in ([], [*whole["cuts"], *whole["cuts"]], ["no cut"]):
        table.put(b"bookmark/odd", msgspec.json.encode(whole | {"cuts": cuts}))
        assert [one.name for one in manager.bookmarks("home").unreadable()] == ["odd"]
    table.put(b"bookmark/odd", msgspec.json.encode(whole | {"stream": "others"}))
    with pytest.raises(ProtocolError, match="belongs to stream home/meters"):
        manager.bookmarks("home").rename("odd", "even")
    with pytest.raises(ProtocolError):
        manager.bookmarks("home").tag("odd", ["t"])
    assert manager.bookmarks("home").delete("odd")


@pytest.mark.parametrize(
    ("walks", "command"),
    [
        ("nadi.client.tables.catalog.entries_of", ["bookmark", "list", "walked"]),
        ("nadi.client.tables.catalog.entries_of", ["slice", "list", "walked"]),
        ("nadi.client.tables.catalog.entries_of", ["stream-table", "list", "walked"]),
        ("nadi.client.tables.catalog.entries_of", ["search", "list", "walked"]),
        ("nadi.client.tables.catalog.entries_of", ["search", "standing", "list", "walked", "logs"]),
        ("nadi.lake.definition.readable", ["lake", "list", "walked"]),
        ("nadi.functions.progress.readable", ["function", "list", "walked"]),
    ],
    ids=lambda given: " ".join(given[:-1]) if isinstance(given, list) else "",
)
@pytest.mark.usefixtures("walked")
def test_a_list_reads_a_table_once(
    manager: nadi.StreamManager,
    server: nadi.standalone.EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    walks: str,
    command: list[str],
) -> None:
    if command[0] == "search":
        pytest.importorskip("tantivy", reason="search needs tantivy")
        manager.create_stream("walked", "logs")
        nadi.search.indexes(manager, "walked").create("logs", "message:text", where=str(tmp_path))
        if "standing" in command:
            manager.create_stream("walked", "hits")
            nadi.search.standing_queries(manager, "walked").create("logs", "hits")
    count, (module, _, walk) = 0, walks.rpartition(".")
    really = getattr(importlib.import_module(module), walk)

    def counted(*given: Any) -> Any:
        nonlocal count
        count += 1
        return really(*given)

    monkeypatch.setattr(walks, counted)
    ran = CliRunner().invoke(app, [*command, "--controller", server.controller_uri])
    assert ran.exit_code == 0, ran.output
    assert count == 1


@pytest.mark.parametrize("kind", ["lake", "function"])
def test_lakes_and_functions(manager: nadi.StreamManager, shell: Shell, kind: str) -> None:
    if kind == "lake":
        catalog = ("--catalog", "type=sql", "--catalog", "uri=sqlite:////nowhere/catalog.db")
        for stream in ("whole", "bad"):
            manager.create_stream("home", stream)
            made = shell.run("lake", "create", "home", stream, "--table", "home.meters", *catalog).output
            assert f"`nadi lake run home {stream}`" in made
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
        whole, unreadable = nadi.lake.lakes_of(manager, "home")
        assert (list(whole), [one.name for one in unreadable]) == (["whole-lake"], [name])
        assert "can't be read" in shell.run("lake", "status", "home", name, code=1).stderr
        assert "whole-lake" in shell.run("stream", "delete", "home", "whole", stdin=b"n\n", code=1).output
    else:
        assert "can't be read" in shell.run("function", "status", "home", name, code=1).stderr
    refused = shell.run("group", "delete", "home", name, "--yes", code=1).stderr.replace("\n", " ")
    assert f"`nadi {kind} delete home {name}`" in refused
    shell.run(kind, "delete", "home", name, "--yes")
    assert [row[kind] for row in shell.json(kind, "list", "home")] == [f"whole-{kind}"]
    shell.run("group", "delete", "home", f"whole-{kind}", "--force", "--yes")
    assert shell.json(kind, "list", "home") == []
    with pytest.raises(NotFoundError):
        manager.reader_group_manager("home").get_reader_group(name)
