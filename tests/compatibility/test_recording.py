"""The recording server itself: what it notes, and for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

import nadi
from nadi.errors import StreamNotFoundError
from tests.compatibility.recording_server import RecordingServer


def test_each_client_of_each_test_has_its_own_record(tmp_path: Path) -> None:
    server = RecordingServer(tmp_path, {})
    first, second = server.open_door("one", "test a"), server.open_door("two", "test a")
    with nadi.StreamManager(first.controller_uri) as manager:
        assert manager.create_scope("home")
        assert not manager.create_scope("home")
        manager.create_stream("home", "meters")
        with manager.create_writer("home", "meters") as writer:
            writer.write_event(b"event", "key")
    with nadi.StreamManager(second.controller_uri) as manager:
        tail = manager.stream_info("home", "meters").tail
        assert [event.data for event in manager.read_events("home", "meters", end=tail)] == [b"event"]
    server.close_doors("test a")
    server.stop()
    one, two = server.record["one"]["test a"], server.record["two"]["test a"]
    assert one.rpcs["createScope"] == {"SUCCESS", "SCOPE_EXISTS"}
    assert {"Hello", "SetupAppend", "AppendBlockEnd"} <= one.received
    assert {"Hello", "AppendSetup", "DataAppended"} <= one.sent
    assert "ReadSegment" not in one.received
    assert "createScope" not in two.rpcs
    assert two.rpcs["getURI"] == {"OK"}
    assert "ReadSegment" in two.received
    assert "SegmentRead" in two.sent
    inside = server.record["nadi's controller, in the server"][""]
    assert {"CreateSegment", "CreateTableSegment"} <= inside.received


def test_a_refused_rpc_is_noted_with_its_code(tmp_path: Path) -> None:
    server = RecordingServer(tmp_path, {})
    door = server.open_door("one", "test a")
    with nadi.StreamManager(door.controller_uri) as manager, pytest.raises(StreamNotFoundError):
        manager.stream_info("nowhere", "nothing")
    server.stop()
    assert any("NOT_FOUND" in outcomes for outcomes in server.record["one"]["test a"].rpcs.values())
