"""The latest row of each key, and changes, compared with a dictionary of the same events."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import nadi
from nadi.client import StreamManager
from nadi.client.streamtables import changes as changing
from nadi.client.streamtables import latest_rows
from nadi.client.streamtables import latest_rows as spill
from nadi.client.streamtables.latest_rows import Spill
from nadi.errors import InvalidArgumentError, StorageFullError
from nadi.model.streamcut import StreamCut

SCHEMA = "meter string, wh long, note string"
METERS = 60
Row = dict[str, Any]


@pytest.fixture(scope="module")
def home(uri: str) -> Iterator[tuple[StreamManager, list[Row], list[tuple[int, StreamCut]]]]:
    """Stream sc/usage with cuts: 1,200 rows of 60 meters, including deletions, written during a split and a merge."""
    chance = random.Random(7)
    with StreamManager(uri) as manager:
        manager.create_stream("sc", "usage", 2)
        manager.stream_tables("sc").define("usage", value_schema=SCHEMA, key=["meter"])
        cuts = manager.cuts("sc", "usage")
        rows: list[Row] = []
        places = [(0, cuts.head())]
        with manager.create_writer("sc", "usage") as writer:
            for number in range(1_200):
                row: Row = {"meter": f"m{chance.randrange(METERS)}", "wh": None, "note": None}
                if chance.random() < 0.8:
                    row |= {"wh": number} if chance.random() < 0.7 else {"note": f"n{number}"}
                rows.append(row)
                writer.write_event(json.dumps(row).encode(), row["meter"])
                if number % 240 == 239:
                    writer.flush()
                    places.append((number + 1, cuts.tail()))
                if number == 400:
                    manager.scale_stream("sc", "usage", [0], [(0.0, 0.2), (0.2, 0.5)])
                if number == 800:
                    first, second = sorted(one.segment_id for one in manager.current_segments("sc", "usage"))[-2:]
                    manager.scale_stream("sc", "usage", [first, second], [(0.0, 0.5)])
        yield manager, rows, places
        manager.stream_tables("sc").delete("usage")


def state(rows: list[Row]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in rows:
        found.pop(row["meter"], None)
        if row["wh"] is not None or row["note"] is not None:
            found[row["meter"]] = row
    return found


def by_meter(found: pa.Table) -> dict[str, Row]:
    rows = found.select(["meter", "wh", "note"]).to_pylist()
    by_meter = {row["meter"]: row for row in rows}
    assert len(by_meter) == len(rows), "each key once"
    return by_meter


def expected_changes(rows: list[Row], first: int) -> dict[str, list[tuple[str, Row]]]:
    held: dict[str, Row] = {}
    found: dict[str, list[tuple[str, Row]]] = {}
    for number, row in enumerate(rows):
        meter, mine = row["meter"], list[tuple[str, Row]]()
        old, gone = held.pop(meter, None), row["wh"] is None and row["note"] is None
        if old is not None:
            mine.append(("delete" if gone else "update_before", old))
        if not gone:
            held[meter] = row
            mine.append(("insert" if old is None else "update_after", row))
        if number >= first and mine:
            found.setdefault(meter, []).extend(mine)
    return found


def changes(found: pa.Table) -> dict[str, list[tuple[str, Row]]]:
    by_meter: dict[str, list[tuple[str, Row]]] = {}
    for row in found.to_pylist():
        own = {name: row[name] for name in ("meter", "wh", "note")}
        by_meter.setdefault(row["meter"], []).append((row["_change_type"], own))
    return by_meter


@pytest.fixture(params=["in memory", "in files", "in files of files"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the memory limit for rows."""
    most = {"in memory": latest_rows.MOST_BYTES, "in files": 1_500, "in files of files": 0}[request.param]
    monkeypatch.setattr(latest_rows, "MOST_BYTES", most)
    gathered = {"in memory": latest_rows.GATHERED_BYTES, "in files": 1_000, "in files of files": 1}[request.param]
    monkeypatch.setattr(latest_rows, "GATHERED_BYTES", gathered)
    for module in (latest_rows, changing, spill):
        monkeypatch.setattr(module, "STREAM_TABLE_PARTS", 3)
    return str(request.param)


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Record the levels of the temporary files."""
    made = set()

    def entered(files: Spill) -> Spill:
        made.add(files._level)
        return files

    monkeypatch.setattr(Spill, "__enter__", entered)
    return made


def test_latest_rows_at_each_cut(home: Any, memory: str, levels: set[int]) -> None:
    manager, rows, places = home
    table = nadi.stream_table(manager, "sc", "usage")
    for count, cut in places[-3:] if memory == "in files of files" else places:
        view = table.latest(cut)
        assert view.end == cut
        assert by_meter(pa.table(view)) == state(rows[:count])
    whole = table.latest()
    assert by_meter(pa.table(whole)) == state(rows)
    assert pa.table(whole).schema.names == ["meter", "wh", "note", "segment_id", "offset"]
    assert by_meter(pa.table(whole)) == state(rows), "a second read"
    assert {"in memory": set(), "in files": {0}}.get(memory, {0, 1, 2, 3}) == levels


def test_the_changes_between_any_two_cuts(home: Any, memory: str, levels: set[int]) -> None:
    manager, rows, places = home
    table = nadi.stream_table(manager, "sc", "usage")
    for number, (first, start) in enumerate(places):
        for last, end in places[number : number + (2 if memory == "in files of files" else 9)]:
            found = table.changes(start=start, end=end)
            assert (found.start, found.end) == (start, end)
            assert changes(pa.table(found)) == expected_changes(rows[:last], first)
    levels.clear()
    assert changes(pa.table(table.changes())) == expected_changes(rows, 0)
    assert {"in memory": set(), "in files": {0}}.get(memory, {0, 1, 2, 3}) == levels


def test_times_bookmarks_and_table_without_key(home: Any) -> None:
    manager, rows, places = home
    count, cut = places[2]
    manager.bookmarks("sc").create("second", cut)
    table = nadi.stream_table(manager, "sc", "usage")
    assert by_meter(pa.table(table.latest("second"))) == state(rows[:count])
    assert pa.table(table.latest("2020-01-01T00:00Z")).num_rows == 0
    assert changes(pa.table(table.changes(start="second"))) == expected_changes(rows, count)
    manager.stream_tables("sc").define("plain-usage", stream="usage", value_schema=SCHEMA)
    with pytest.raises(InvalidArgumentError):
        nadi.stream_table(manager, "sc", "plain-usage").latest()
    with pytest.raises(InvalidArgumentError):
        nadi.stream_table(manager, "sc", "plain-usage").changes()
    manager.stream_tables("sc").delete("plain-usage")


def test_changes_written_to_a_stream_give_the_rows(home: Any) -> None:
    manager, rows, places = home
    table = nadi.stream_table(manager, "sc", "usage")
    manager.create_stream("sc", "usage-changes", 2)
    manager.stream_tables("sc").define("usage-changes", value_schema=f"{SCHEMA}, _change_type string", key=["meter"])
    again = nadi.stream_table(manager, "sc", "usage-changes")
    with manager.create_writer("sc", "usage-changes") as writer:
        for (_, start), (count, end) in pairwise(places):
            for change in pa.table(table.changes(start=start, end=end)).to_pylist():
                own = {name: change[name] for name in ("meter", "wh", "note", "_change_type")}
                writer.write_event(json.dumps(own).encode(), change["meter"])
            writer.flush()
            view = pa.table(again.latest())
            assert view.schema.names == ["meter", "wh", "note", "segment_id", "offset"]
            assert by_meter(view) == state(rows[:count])
    manager.stream_tables("sc").delete("usage-changes")


def test_key_other_than_routing_key_has_a_stable_order(uri: str) -> None:
    """Reads return the same rows each time, and changes lead from one cut to the next."""
    chance = random.Random(3)
    with StreamManager(uri) as manager:
        manager.create_stream("sc", "mixed-up", 4)
        manager.stream_tables("sc").define("mixed-up", value_schema=SCHEMA, key=["meter"])
        cuts, places = manager.cuts("sc", "mixed-up"), []
        with manager.create_writer("sc", "mixed-up") as writer:
            for number in range(400):
                wh = number if chance.random() < 0.7 else None
                event = {"meter": f"m{chance.randrange(9)}", "wh": wh}
                writer.write_event(json.dumps(event).encode(), f"k{chance.randrange(20)}")
                if number % 40 == 39:
                    writer.flush()
                    places.append(cuts.tail())
        table = nadi.stream_table(manager, "sc", "mixed-up")
        held: dict[str, Row] = {}
        start = cuts.head()
        for cut in places:
            rows = pa.table(table.rows(end=cut)).to_pylist()
            rows.sort(key=lambda one: (one["segment_id"], one["offset"]))
            assert by_meter(pa.table(table.latest(cut))) == state(
                [{name: row[name] for name in ("meter", "wh", "note")} for row in rows]
            )
            found = pa.table(table.changes(start=start, end=cut))
            for kind, row in (one for some in changes(found).values() for one in some):
                if kind in ("delete", "update_before"):
                    assert held.pop(row["meter"]) == row
                else:
                    assert row["meter"] not in held
                    held[row["meter"]] = row
            assert held == by_meter(pa.table(table.latest(cut)))
            start = cut
        manager.stream_tables("sc").delete("mixed-up")


def test_keys_of_all_types_and_rows_without_key(uri: str, memory: str) -> None:
    schema = (
        "n long, s string, b binary, t timestamp, l timestamp_ntz, d date, y boolean, c decimal(9, 2), i short, "
        "value double, more array<struct<a: string>>"
    )
    with StreamManager(uri) as manager:
        stream = "kinds-" + memory.replace(" ", "-")
        manager.create_stream("sc", stream, 2)
        names = ["n", "s", "b", "t", "l", "d", "y", "c", "i"]
        manager.stream_tables("sc").define(stream, value_schema=schema, key=names, value_format="msgpack")
        writer = manager.create_writer("sc", stream)
        keys = [
            (1, "a", b"\xff", "2026-11-14T00:00:00Z", "2026-11-14T00:00:00", "2026-11-14", True, "1.50", 3),
            (1, "ab", b"\xff", "2026-11-14T00:00:00Z", "2026-11-14T00:00:00", "2026-11-14", True, "1.50", 3),
            (-1, "a", b"", "1960-11-14T00:00:00Z", "1960-11-14T00:00:00", "1960-11-14", False, "-1.50", -3),
            (1, "a", b"\xff", "2026-11-14T00:00:00Z", "2026-11-14T00:00:00", "2026-11-14", False, "1.50", 3),
        ]
        for number in range(400):
            row: Row = dict(zip(names, keys[number % 4], strict=True)) | {"value": number, "more": [{"a": str(number)}]}
            if number == 4:
                row["s"] = None
            writer.write_event(msgspec.msgpack.encode(row), "k")
        writer.write_event(b"nonsense", "k")
        writer.close()
        table = nadi.stream_table(manager, "sc", stream)
        found = pa.table(table.latest()).to_pylist()
        assert sorted((row["value"], row["more"]) for row in found) == [
            (number, [{"a": str(number)}]) for number in range(396, 400)
        ]
        assert pa.table(table.rows()).num_rows == 401
        assert pa.table(table.changes()).num_rows == 4 + 2 * 395
        manager.stream_tables("sc").delete(stream)


def test_full_disk_raises_storage_full_and_leaves_no_files(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, _, _ = home
    monkeypatch.setattr(latest_rows, "MOST_BYTES", 0)
    monkeypatch.setattr(latest_rows, "GATHERED_BYTES", 1)
    made: list[Full] = []

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() > 1_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    def opened(**_: object) -> Full:
        made.append(Full())
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
    for view in (table := nadi.stream_table(manager, "sc", "usage")).latest(), table.changes():
        with pytest.raises(StorageFullError, match="TMPDIR"):
            list(view.batches())
    assert made
    assert all(file.closed for file in made)


def test_unfinished_read_leaves_no_files(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, _, _ = home
    monkeypatch.setattr(latest_rows, "MOST_BYTES", 0)
    monkeypatch.setattr(latest_rows, "GATHERED_BYTES", 1)
    made: list[Any] = []
    real = tempfile.TemporaryFile

    def opened(**given: Any) -> Any:
        made.append(real(**given))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
    batches = nadi.stream_table(manager, "sc", "usage").latest().batches()
    next(batches)
    assert not all(file.closed for file in made)
    del batches
    assert made
    assert all(file.closed for file in made)
