"""Changes written to another stream: each once, in order, despite kills at any step."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import nadi
from nadi.client import StreamManager
from nadi.client.streamtables import change_writer, changes, latest_rows
from nadi.client.streamtables import latest_rows as spill
from nadi.client.streamtables.change_writer import ChangeWriter, write_changes
from nadi.errors import ConflictError, InvalidArgumentError, NotFoundError, StreamNotFoundError
from nadi.naming import STREAM_TABLES_TABLE
from tests.support.waiting import until

SCHEMA = "meter string, wh long, note string"
Row = dict[str, Any]


class Killed(Exception):
    """Simulates the end of a process."""


@pytest.fixture(scope="module")
def manager(uri: str) -> Iterator[StreamManager]:
    with StreamManager(uri) as manager:
        yield manager


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit rounds to about 40 events."""
    monkeypatch.setattr(change_writer, "STREAM_TABLE_ROUND_BYTES", 2_000)
    monkeypatch.setattr(change_writer, "STREAM_TABLE_ROUND_EVENTS", 40)


def made(manager: StreamManager, name: str) -> None:
    """Define a table of that name, and create a stream for its changes."""
    manager.create_stream("sc", name, 2)
    manager.create_stream("sc", f"{name}-changes", 2)
    manager.stream_tables("sc").define(name, value_schema=SCHEMA, key=["meter"])


def write(manager: StreamManager, name: str, count: int, chance: random.Random) -> None:
    with manager.create_writer("sc", name) as writer:
        for number in range(count):
            meter = f"m{chance.randrange(12)}"
            row: Row = {"meter": meter} | ({"wh": number} if chance.random() < 0.8 else {})
            writer.write_event(json.dumps(row).encode(), meter)


def by_meter(found: pa.Table) -> dict[str, list[Row]]:
    mine: dict[str, list[Row]] = {}
    for row in found.select(["_change_type", "meter", "wh", "note"]).to_pylist():
        mine.setdefault(row["meter"], []).append(row)
    return mine


def check(manager: StreamManager, name: str) -> None:
    """Check that all changes were written once, in order per key, and result in the table's rows."""
    source, target = (nadi.stream_table(manager, "sc", one) for one in (name, f"{name}-changes"))
    assert by_meter(pa.table(target.rows())) == by_meter(pa.table(source.changes()))
    rows = [
        sorted(pa.table(one.latest()).select(["meter", "wh", "note"]).to_pylist(), key=lambda row: row["meter"])
        for one in (source, target)
    ]
    assert rows[0] == rows[1]


def test_changes_follow_a_growing_table(manager: StreamManager, small: None) -> None:
    made(manager, "on")
    chance, stop, counts = random.Random(1), threading.Event(), list[int]()
    thread = threading.Thread(
        target=write_changes, args=(manager, "sc", "on", "on-changes"),
        kwargs={"stop": stop, "every": 0.02, "on_progress": counts.append},
    )  # fmt: skip
    thread.start()
    for number in range(4):
        write(manager, "on", 150, chance)
        if number == 1:
            manager.scale_stream("sc", "on", [0], [(0.0, 0.2), (0.2, 0.5)])
            manager.scale_stream("sc", "on-changes", [1], [(0.5, 0.7), (0.7, 1.0)])
    table = nadi.stream_table(manager, "sc", "on")
    expected = pa.table(table.changes()).num_rows
    until(lambda: counts[-1:] == [expected])
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    check(manager, "on")
    found = manager.stream_tables("sc").get("on-changes")
    assert (found.key, found.note) == (("meter",), "changes of on")
    assert write_changes(manager, "sc", "on", "on-changes", end="tail") == 0


@pytest.mark.parametrize("most", [None, 0], ids=["in memory", "in files"])
def test_kill_at_each_step_repeats_or_commits_the_round(
    manager: StreamManager, small: None, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    name = f"kills-{most}"
    made(manager, name)
    if most is not None:
        monkeypatch.setattr(latest_rows, "MOST_BYTES", most)
        monkeypatch.setattr(latest_rows, "GATHERED_BYTES", 1)
        for module in (latest_rows, changes, spill):
            monkeypatch.setattr(module, "STREAM_TABLE_PARTS", 2)
            if module is not spill:
                monkeypatch.setattr(module, "MOST_LEVELS", 1)
    chance = random.Random(2)
    manager.stream_tables("sc").define(
        f"{name}-changes", value_schema=f"{SCHEMA}, _change_type string", key=["meter"], value_format="msgpack"
    )
    source, target = (nadi.stream_table(manager, "sc", one) for one in (name, f"{name}-changes"))
    died = []
    for dies_at in ("begun", "written", "recorded", "committed", "done", "nowhere"):
        write(manager, name, 90, chance)
        turns = iter(range(100))

        def step(reached: str, dies_at: str = dies_at, turns: Iterator[int] = turns) -> None:
            if reached == dies_at and next(turns) == 1:
                died.append(reached)
                raise Killed(reached)

        run = ChangeWriter(manager, source, target, step)
        end = manager.cuts("sc", name).tail()
        if dies_at == "nowhere":
            run.run(end, threading.Event(), 1.0, None, "raise")
        else:
            with pytest.raises(Killed):
                run.run(end, threading.Event(), 1.0, None, "raise")
    assert died == ["begun", "written", "recorded", "committed", "done"]
    check(manager, name)


def test_expired_transaction_is_written_again(manager: StreamManager) -> None:
    made(manager, "late")
    write(manager, "late", 50, random.Random(3))
    progress = manager.table("sc", STREAM_TABLES_TABLE)

    def run(step: Callable[[str], None] = lambda name: None) -> int:
        source, target = (nadi.stream_table(manager, "sc", one) for one in ("late", "late-changes"))
        return ChangeWriter(manager, source, target, step).run("tail", threading.Event(), 1.0, None, "raise")

    def abort(reached: str) -> None:
        if reached == "recorded":
            held = progress.get(b"changes/late-changes")
            assert held is not None
            txn = json.loads(held.value)["transaction"]
            with manager.create_transaction_writer("sc", "late-changes") as writer:
                writer.get_txn(txn).abort(wait=True)
            raise Killed

    write_changes(manager, "sc", "late", "late-changes", end="head")
    with pytest.raises(Killed):
        run(abort)
    assert run() > 0
    check(manager, "late")


@pytest.mark.parametrize("choice", ["written", "again"])
def test_unknown_commit_raises_conflict(manager: StreamManager, choice: Any) -> None:
    name = f"unknown-{choice}"
    made(manager, name)
    write(manager, name, 30, random.Random(4))
    write_changes(manager, "sc", name, f"{name}-changes", end="tail")
    table, key = manager.table("sc", STREAM_TABLES_TABLE), f"changes/{name}-changes".encode()
    held = table.get(key)
    assert held is not None
    stored = json.loads(held.value)
    write(manager, name, 30, random.Random(5))
    tail = manager.cuts("sc", name).tail().as_text()
    table.put(key, json.dumps(stored | {"next": tail, "transaction": str(uuid.UUID(int=7))}).encode())
    with pytest.raises(ConflictError, match=str(uuid.UUID(int=7))):
        write_changes(manager, "sc", name, f"{name}-changes", end="tail")
    count = write_changes(manager, "sc", name, f"{name}-changes", end="tail", on_unknown_commit=choice)
    if choice == "again":
        check(manager, name)
    else:
        assert count == 0


def test_concurrent_writers_write_each_change_once(manager: StreamManager, small: None) -> None:
    made(manager, "two")
    write(manager, "two", 600, random.Random(6))
    errors: list[ConflictError] = []

    def run() -> None:
        try:
            write_changes(manager, "sc", "two", "two-changes", end="tail")
        except ConflictError as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) < 3
    write_changes(manager, "sc", "two", "two-changes", end="tail")
    check(manager, "two")


def test_killed_processes_write_each_change_once(manager: StreamManager, uri: str) -> None:
    """A process that follows a growing table is killed repeatedly."""
    made(manager, "processes")
    program = (
        "import nadi, nadi.client.streamtables.change_writer as f\n"
        "f.STREAM_TABLE_ROUND_BYTES, f.STREAM_TABLE_ROUND_EVENTS = 2_000, 40\n"
        f"with nadi.StreamManager({uri!r}) as manager:\n"
        "    nadi.write_changes(manager, 'sc', 'processes', 'processes-changes', every=0.01,\n"
        "                       on_progress=lambda count: print(count, flush=True))\n"
    )
    chance = random.Random(8)
    for kill in range(3):
        write(manager, "processes", 200, chance)
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(1 + kill):
                assert process.stdout.readline()
            process.kill()
    write_changes(manager, "sc", "processes", "processes-changes", end="tail")
    check(manager, "processes")


def test_changes_include_columns_added_during_and_between_calls(manager: StreamManager) -> None:
    made(manager, "grown")
    tables = manager.stream_tables("sc")
    stop = threading.Event()
    runs = threading.Thread(
        target=write_changes, args=(manager, "sc", "grown", "grown-changes"), kwargs={"stop": stop, "every": 0.05}
    )

    def put(**row: Any) -> None:
        with manager.create_writer("sc", "grown") as writer:
            writer.write_event(json.dumps({"meter": "m"} | row).encode(), "m")

    def changes() -> list[Row]:
        try:
            found: list[Row] = pa.table(nadi.stream_table(manager, "sc", "grown-changes").rows()).to_pylist()
            return found
        except NotFoundError:
            return []

    put(wh=1)
    runs.start()
    try:
        until(lambda: len(changes()) == 1)
        tables.define("grown", value_schema=f"{SCHEMA}, room string", key=["meter"], replace=True)
        put(wh=2, room="hall")
        until(lambda: len(changes()) == 3)
    finally:
        stop.set()
        runs.join()
    tables.define("grown", value_schema=f"{SCHEMA}, room string, floor int", key=["meter"], replace=True)
    put(wh=3, room="hall", floor=1)
    write_changes(manager, "sc", "grown", "grown-changes", end="tail")
    names = ["_change_type", "wh", "room", "floor"]
    assert [tuple(row[name] for name in names) for row in sorted(changes(), key=lambda row: row["offset"])] == [
        ("insert", 1, None, None),
        ("update_before", 1, None, None),
        ("update_after", 2, "hall", None),
        ("update_before", 2, "hall", None),
        ("update_after", 3, "hall", 1),
    ]


def test_invalid_target_is_rejected(manager: StreamManager) -> None:
    made(manager, "refused")
    tables = manager.stream_tables("sc")
    for to in ("refused", "own"):
        if to == "own":
            tables.define("own", stream="refused", value_schema=f"{SCHEMA}, _change_type string", key=["meter"])
        with pytest.raises(InvalidArgumentError, match=to):
            write_changes(manager, "sc", "refused", to)
    with pytest.raises(StreamNotFoundError):
        write_changes(manager, "sc", "refused", "nowhere")
    tables.define("odd-changes", stream="refused-changes", value_schema="wh long, meter string", key=["meter"])
    with pytest.raises(InvalidArgumentError, match=r"'_change_type'.*sc/odd-changes"):
        write_changes(manager, "sc", "refused", "odd-changes")
    tables.define(
        "odd-changes",
        stream="refused-changes",
        value_schema=f"{SCHEMA}, _change_type string",
        key=["note"],
        replace=True,
    )
    with pytest.raises(InvalidArgumentError, match=r"odd-changes.*refused, meter"):
        write_changes(manager, "sc", "refused", "odd-changes")
    with pytest.raises(InvalidArgumentError, match=r"on_unknown_commit.*perhaps"):
        write_changes(manager, "sc", "refused", "refused-changes", on_unknown_commit="perhaps")  # type: ignore[arg-type]
    tables.define("keyless", stream="refused", value_schema=SCHEMA)
    with pytest.raises(InvalidArgumentError, match="keyless"):
        write_changes(manager, "sc", "keyless", "refused-changes")
    write_changes(manager, "sc", "refused", "refused-changes", end="tail")
    tables.define("refused-2", stream="refused", value_schema=SCHEMA, key=["meter"])
    with pytest.raises(ConflictError, match="refused"):
        write_changes(manager, "sc", "refused-2", "refused-changes", end="tail")


def test_progress_is_deleted_with_the_stream_of_changes(manager: StreamManager) -> None:
    made(manager, "gone")
    write(manager, "gone", 30, random.Random(9))
    write_changes(manager, "sc", "gone", "gone-changes", end="tail")
    manager.seal_stream("sc", "gone-changes")
    manager.delete_stream("sc", "gone-changes")
    assert manager.table("sc", STREAM_TABLES_TABLE).get(b"changes/gone-changes") is None
    manager.create_stream("sc", "gone-changes")
    assert write_changes(manager, "sc", "gone", "gone-changes", end="tail") > 0
    check(manager, "gone")
