"""nadi's own client, to complete its part of the record."""

from __future__ import annotations

import time

import pytest

import nadi
from nadi.client import TimeWindow
from nadi.client.control.policy import RetentionPolicy, ScalingPolicy
from nadi.errors import (
    ConditionFailedError,
    InvalidArgumentError,
    NotEmptyError,
    StreamNotFoundError,
    StreamNotSealedError,
)
from tests.compatibility.conftest import NADI, Server
from tests.compatibility.events import by_key, merge_all, numbered, read_all, split_first, texts

pytestmark = pytest.mark.compatibility


def test_scopes_and_streams(nadi_manager: nadi.StreamManager, scope: str) -> None:
    manager = nadi_manager
    assert manager.create_scope(scope)
    assert not manager.create_scope(scope)
    assert scope in manager.list_scopes()
    assert manager.create_stream(scope, "one", 2, tags=["a"])
    assert not manager.create_stream(scope, "one")
    assert manager.create_stream(scope, "two", scaling=ScalingPolicy.by_event_rate(10), tags=["b"])
    assert manager.list_streams(scope, "a") == ["one"]
    assert sorted(name for name in manager.list_streams(scope) if not name.startswith("_")) == ["one", "two"]
    manager.update_stream(scope, "one", retention=RetentionPolicy.by_size(1_000))
    assert manager.stream_configuration(scope, "one").retention == RetentionPolicy.by_size(1_000)
    with pytest.raises(NotEmptyError):
        manager.delete_scope(scope)
    with pytest.raises(StreamNotSealedError):
        manager.delete_stream(scope, "one")
    with pytest.raises(StreamNotFoundError):
        manager.seal_stream(scope, "three")
    for stream in ("one", "two"):
        manager.seal_stream(scope, stream)
        assert manager.delete_stream(scope, stream)
    assert not manager.delete_stream(scope, "one")
    assert manager.delete_scope(scope)
    assert not manager.delete_scope(scope)
    manager.create_scope(scope)
    manager.create_stream(scope, "one")
    assert manager.delete_scope(scope, recursive=True)


def test_events_through_scalings_truncation_and_seal(server: Server, scope: str) -> None:
    with nadi.StreamManager(server(NADI).controller_uri) as manager:
        manager.create_scope(scope)
        manager.create_stream(scope, "stream")
        written = numbered(0, 300)
        with manager.create_writer(scope, "stream") as writer:
            writer.write_batch([e.encode() for e, _ in written[:100]], [k for _, k in written[:100]])
            writer.flush()
            split_first(manager, scope, "stream")
            cut = manager.stream_info(scope, "stream").tail
            writer.write_batch([e.encode() for e, _ in written[100:200]], [k for _, k in written[100:200]])
            writer.flush()
            merge_all(manager, scope, "stream")
            for event, key in written[200:]:
                writer.write_event(event.encode(), key)
            writer.flush()
            large = b"x" * (9 << 20)
            writer.write_event(large, "key")
        assert by_key(read_all(manager, scope, "stream")[:-1]) == by_key(texts(written))
        assert manager.cuts(scope, "stream").at(1) == manager.stream_info(scope, "stream").head
        manager.truncate_stream(cut)
        assert by_key(read_all(manager, scope, "stream")[:-1]) == by_key(texts(written[100:]))
        manager.seal_stream(scope, "stream")
        assert [event.data for event in manager.read_events(scope, "stream")][-1] == large


def test_transactions(nadi_manager: nadi.StreamManager, scope: str) -> None:
    nadi_manager.create_scope(scope)
    nadi_manager.create_stream(scope, "stream", 2)
    with nadi_manager.create_transaction_writer(scope, "stream") as writer:
        kept, dropped = writer.begin_txn(), writer.begin_txn()
        for transaction, label in ((kept, b"kept"), (dropped, b"dropped")):
            transaction.write_event(label, "key")
            transaction.flush()
        kept.ping()
        assert writer.get_txn(kept.txn_id).status() == "OPEN"
        dropped.abort(wait=True)
        kept.commit(wait=True)
        assert (kept.status(), dropped.status()) == ("COMMITTED", "ABORTED")
    assert read_all(nadi_manager, scope, "stream") == [b"kept"]


def test_event_time(nadi_manager: nadi.StreamManager, scope: str) -> None:
    nadi_manager.create_scope(scope)
    nadi_manager.create_stream(scope, "stream", timestamp_aggregation_timeout_ms=60_000)
    cuts = nadi_manager.cuts(scope, "stream")
    with (
        nadi_manager.create_writer(scope, "stream", writer_id="w") as writer,
        nadi_manager.create_reader(scope, "stream") as reader,
    ):
        writer.write_event(b"event")
        writer.note_time(10).result(60)
        while (cut := cuts.after_event_time(10)) is None:
            time.sleep(0.05)
        assert [event.data for event in nadi_manager.read_events(scope, "stream", end=cut)] == [b"event"]
        assert reader.current_time_window() == TimeWindow(None, 10)
        reader.next_block(60)
        assert reader.current_time_window() == TimeWindow(10, None)
        with (
            nadi_manager.create_writer(scope, "stream", writer_id="w") as late,
            pytest.raises(InvalidArgumentError),
        ):
            late.note_time(9).result(60)


def test_tables(nadi_manager: nadi.StreamManager, scope: str) -> None:
    nadi_manager.create_scope(scope)
    table = nadi_manager.table(scope, "table")
    assert table.create()
    assert not table.create()
    version = table.put(b"key", b"value")
    assert table.get(b"key") is not None
    with pytest.raises(ConditionFailedError):
        table.put(b"key", b"other", version + 1)
    table.remove(b"key", version)
    assert table.get(b"key") is None
    table.delete()
