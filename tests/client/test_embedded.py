"""The client against a complete server in another process."""

from __future__ import annotations

from typing import Any

import pytest

import nadi
from nadi.client import ABSENT, StreamManager
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidStreamCutError,
    NotEmptyError,
    SegmentTruncatedError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    TransactionFailedError,
)


def test_scopes_and_streams(manager: StreamManager) -> None:
    wrong: Any
    for wrong in (None, 5, b"sc"):
        with pytest.raises(InvalidNameError):
            manager.create_stream("sc", wrong)
    for wrong in ("abc", [1]):
        with pytest.raises(InvalidArgumentError, match="tags"):
            manager.create_stream("sc", "tagged", tags=wrong)
    with pytest.raises(StreamNotFoundError):
        manager.scale_stream("sc", "none", [0], [(0.0, 1.0)])
    assert manager.create_scope("other")
    assert not manager.create_scope("other")
    assert set(manager.list_scopes()) >= {"sc", "other"}
    assert manager.create_stream("other", "a", tags=["t"])
    assert not manager.create_stream("other", "a")
    assert manager.list_streams("other") == ["a"]
    assert manager.list_streams("other", tag="t") == ["a"]
    assert manager.stream_configuration("other", "a").tags == ("t",)
    with pytest.raises(NotEmptyError):
        manager.delete_scope("other")
    with pytest.raises(StreamNotSealedError):
        manager.delete_stream("other", "a")
    with pytest.raises(StreamNotFoundError):
        manager.stream_info("other", "b")
    writer = manager.create_writer("other", "a")
    writer.write_event(b"x").result(60)
    manager.seal_stream("other", "a")
    with pytest.raises(StreamSealedError):
        writer.write_event(b"y").result(60)
    info = manager.stream_info("other", "a")
    assert info.is_sealed
    assert list(info.tail.positions.values()) == [9]
    assert [event.data for event in manager.read_events("other", "a")] == [b"x"]
    assert manager.delete_stream("other", "a")
    assert manager.delete_scope("other")
    assert not manager.delete_scope("other")


def test_transaction_is_resumed_by_its_id(manager: StreamManager) -> None:
    manager.create_stream("sc", "resumed", 2)
    with manager.create_transaction_writer("sc", "resumed", lease_ms=20_000) as first:
        committed, aborted, other = first.begin_txn(), first.begin_txn(), first.begin_txn(60_000)
        committed.write_event(b"1", "k")
        committed.commit(wait=True)
        aborted.abort(wait=True)
        with pytest.raises(TransactionFailedError, match="COMMITTED"):
            committed.abort()
    with pytest.raises(ClosedError):
        first.begin_txn()
    with pytest.raises(TransactionFailedError):
        other.write_event(b"x")
    with manager.create_transaction_writer("sc", "resumed", lease_ms=20_000) as second:
        again = second.get_txn(str(committed.txn_id))
        again.commit(wait=True)  # like a process that died before it recorded the first commit
        with pytest.raises(TransactionFailedError, match="COMMITTED"):
            again.write_event(b"2", "k")
        late = second.get_txn(aborted.txn_id)
        for use in (late.commit, lambda: late.write_event(b"3", "k")):
            with pytest.raises(TransactionFailedError, match="ABORTED"):
                use()
        late.abort()
        with pytest.raises(InvalidArgumentError):
            second.get_txn("no id")
        resumed = second.get_txn(other.txn_id)
        resumed.write_event(b"4", "k")
        resumed.abort()
    tail = manager.stream_info("sc", "resumed").tail
    assert [event.data for event in manager.read_events("sc", "resumed", end=tail)] == [b"1"]


def test_transaction_of_a_sealed_stream_fails(manager: StreamManager) -> None:
    manager.create_stream("sc", "ended")
    with manager.create_transaction_writer("sc", "ended") as writer:
        txn = writer.begin_txn()
        txn.write_event(b"1")
        txn.flush()
        manager.seal_stream("sc", "ended")
        with pytest.raises(TransactionFailedError), txn:
            pass
        with pytest.raises(TransactionFailedError):
            txn.flush()


def test_truncation_at_an_invalid_offset_is_rejected(manager: StreamManager) -> None:
    manager.create_stream("sc", "whole")
    with manager.create_writer("sc", "whole") as writer:
        writer.write_batch([b"%d" % number for number in range(100)], "k")
    info = manager.stream_info("sc", "whole")
    for offset in (3, 1_000_000):  # within an event, past the end
        with pytest.raises(InvalidStreamCutError):
            manager.truncate_stream(nadi.StreamCut("sc", "whole", {0: offset}))
    assert manager.stream_info("sc", "whole").head == info.head
    assert sum(1 for _ in manager.read_events("sc", "whole", end=info.tail)) == 100


def test_reader_reports_a_truncated_segment_and_continues(manager: StreamManager) -> None:
    manager.create_stream("sc", "gone")
    with manager.create_writer("sc", "gone") as writer:
        writer.write_batch([b"old"] * 10, "k").result(60)
        start = manager.stream_info("sc", "gone").head
        (old,) = manager.current_segments("sc", "gone")
        manager.scale_stream("sc", "gone", [old.segment_id], [(0.0, 0.5), (0.5, 1.0)])
        cut = manager.stream_info("sc", "gone").tail
        writer.write_batch([b"new"] * 10, "k").result(60)
    manager.truncate_stream(cut)
    end = manager.stream_info("sc", "gone").tail
    with manager.create_reader("sc", "gone", start=start, end=end) as reader:
        with pytest.raises(SegmentTruncatedError):
            reader.next_block(60)
        assert [event for _, block in reader for event in block] == [b"new"] * 10


def test_large_events(manager: StreamManager) -> None:
    manager.create_stream("sc", "large")
    with manager.create_writer("sc", "large") as writer:
        writer.write_batch([b"a", b"b" * (9 << 20), b"c", b"d" * (8 << 20), b"e"], "k")
    tail = manager.stream_info("sc", "large").tail
    events = [event.data for event in manager.read_events("sc", "large", end=tail)]
    assert [(event[:1], len(event)) for event in events] == [
        (b"a", 1),
        (b"b", 9 << 20),
        (b"c", 1),
        (b"d", 8 << 20),
        (b"e", 1),
    ]


def test_tables(manager: StreamManager) -> None:
    table = manager.table("sc", "intents")
    assert table.create()
    assert not table.create()
    version = table.put(b"k", b"v", ABSENT)
    with pytest.raises(ConditionFailedError):
        table.put(b"k", b"w", ABSENT)
    assert table.put(b"k", b"w", version) > version
    stored = table.get(b"k")
    assert stored is not None
    assert stored.value == b"w"
    table.remove(b"k", stored.version)
    assert table.get(b"k") is None
