"""Tables of streams that are empty, truncated, recreated, or contain invalid events."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import nadi
from nadi.client import StreamManager
from nadi.client.streamtables import latest_rows
from nadi.errors import (
    EventTooLargeError,
    InvalidStreamCutError,
    NadiError,
    StreamNotFoundError,
    StreamRecreatedError,
    TruncatedError,
    UnavailableError,
)

SCHEMA = "meter string, wh long, note string"


@pytest.fixture(scope="module")
def manager(uri: str) -> Iterator[StreamManager]:
    with StreamManager(uri) as manager:
        yield manager


def made(manager: StreamManager, name: str, segments: int = 1) -> nadi.client.streamtables.table.StreamTable:
    manager.create_stream("sc", name, segments)
    manager.create_stream("sc", f"{name}-changes")
    manager.stream_tables("sc").define(name, value_schema=SCHEMA, key=["meter"])
    return nadi.stream_table(manager, "sc", name)


def write(manager: StreamManager, stream: str, *rows: dict[str, Any]) -> None:
    with manager.create_writer("sc", stream) as writer:
        for row in rows:
            writer.write_event(json.dumps(row).encode(), row["meter"])


def wh(view: Any) -> dict[str, int]:
    return {row["meter"]: row["wh"] for row in pa.table(view).to_pylist()}


def test_empty_stream(manager: StreamManager) -> None:
    table = made(manager, "empty", 3)
    for view in (table.rows(), table.latest(), table.latest("head"), table.changes()):
        found = pa.table(view)
        assert found.num_rows == 0
        assert "wh" in found.schema.names
    assert nadi.write_changes(manager, "sc", "empty", "empty-changes", end="tail") == 0
    assert pa.table(nadi.stream_table(manager, "sc", "empty-changes").latest()).num_rows == 0


def test_truncated_stream_has_remaining_rows(manager: StreamManager) -> None:
    table = made(manager, "short")
    write(manager, "short", {"meter": "a", "wh": 1}, {"meter": "b", "wh": 1})
    cut = manager.cuts("sc", "short").tail()
    write(manager, "short", {"meter": "b", "wh": 2})
    nadi.write_changes(manager, "sc", "short", "short-changes", end=cut)
    head = manager.cuts("sc", "short").head()
    manager.truncate_stream(cut)
    assert wh(table.latest()) == {"b": 2}
    assert pa.table(table.changes(start=cut))["_change_type"].to_pylist() == ["insert"]
    with pytest.raises(TruncatedError):
        table.changes(start=head)
    with pytest.raises(InvalidStreamCutError):
        table.latest(head)
    assert nadi.write_changes(manager, "sc", "short", "short-changes", end="tail") == 1
    assert wh(nadi.stream_table(manager, "sc", "short-changes").latest()) == {"a": 1, "b": 2}
    write(manager, "short", {"meter": "b", "wh": 3})
    later = manager.cuts("sc", "short").tail()
    manager.truncate_stream(later)
    with pytest.raises(TruncatedError):
        nadi.write_changes(manager, "sc", "short", "short-changes", end="tail")


def test_events_that_are_not_rows(manager: StreamManager) -> None:
    table = made(manager, "noise")
    noise = (b"", b"\xff\xfe", b"null", b"[]", b'{"meter": 5}', b'{"wh": 7}', b"{")
    with manager.create_writer("sc", "noise") as writer:
        for event in (*noise, b'{"meter": "a", "wh": 1}'):
            writer.write_event(event, "k")
    assert wh(table.latest()) == {"a": 1}
    assert pa.table(table.changes())["_change_type"].to_pylist() == ["insert"]
    assert pa.table(table.rows()).num_rows == 8


def test_huge_rows(manager: StreamManager) -> None:
    table = made(manager, "huge")
    rows = pa.table({"meter": ["a", "b", "a"], "note": ["x" * 9_000_000, "y", "z" * 3_000_000]})
    assert nadi.write_rows(manager, "sc", "huge", rows) == 3
    assert sorted(map(len, pa.table(table.latest())["note"].to_pylist())) == [1, 3_000_000]
    with pytest.raises(EventTooLargeError):
        nadi.write_rows(manager, "sc", "huge", rows, once="huge")
    assert nadi.write_changes(manager, "sc", "huge", "huge-changes", end="tail") == 4


def test_sealed_and_recreated_stream(manager: StreamManager) -> None:
    table = made(manager, "ends")
    write(manager, "ends", {"meter": "a", "wh": 1})
    nadi.write_changes(manager, "sc", "ends", "ends-changes", end="tail")
    manager.seal_stream("sc", "ends")
    assert wh(table.latest()) == {"a": 1}
    for once in (None, "name"):
        with pytest.raises(NadiError, match="sc/ends is sealed"):
            nadi.write_rows(manager, "sc", "ends", pa.table({"meter": ["a"]}), once=once)
    manager.delete_stream("sc", "ends")
    with pytest.raises(StreamNotFoundError):
        table.latest()
    manager.create_stream("sc", "ends")
    manager.stream_tables("sc").define("ends", value_schema=SCHEMA, key=["meter"])
    write(manager, "ends", {"meter": "b", "wh": 2})
    with pytest.raises(StreamRecreatedError):
        nadi.write_changes(manager, "sc", "ends", "ends-changes", end="tail")
    assert wh(nadi.stream_table(manager, "sc", "ends-changes").latest()) == {"a": 1}


def test_missing_temporary_folder_raises_unavailable(manager: StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(manager, "no-folder")
    write(manager, "no-folder", {"meter": "a", "wh": 1}, {"meter": "b", "wh": 1})
    monkeypatch.setattr(latest_rows, "MOST_BYTES", 0)
    monkeypatch.setattr(latest_rows, "GATHERED_BYTES", 1)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(UnavailableError, match="/nowhere"):
        list(table.latest().batches())
