"""The official package's transactions: committed ones are readable completely and in order, others not at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

import pytest

import nadi
from tests.compatibility.conftest import Official
from tests.compatibility.events import by_key, merge_all, numbered, read_all, split_first, texts
from tests.compatibility.official_python import OfficialError

pytestmark = pytest.mark.compatibility

STREAM = "stream"


def read_committed(manager: nadi.StreamManager, scope: str) -> list[bytes]:
    """Seal the stream, which waits for pending commits, and return all events."""
    manager.seal_stream(scope, STREAM)
    return read_all(manager, scope, STREAM)


def test_concurrent_transactions(client: Official, nadi_manager: nadi.StreamManager, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 2)
    writer = client.manager.create_transaction_writer(scope, STREAM, 1)
    transactions = [writer.begin_txn() for _ in range(4)]
    written = [numbered(0, 60, label=f"transaction {number}") for number in range(4)]
    for start in range(0, 60, 20):  # in turns
        for transaction, events in zip(transactions, written, strict=True):
            client.extras.write(transaction, events[start : start + 20])
    assert all(transaction.is_open() for transaction in transactions)
    assert read_all(nadi_manager, scope, STREAM) == []
    transactions[2].commit()
    transactions[0].commit_timestamp(1_700_000_000_000)
    transactions[1].abort()
    assert not transactions[2].is_open()
    assert not transactions[1].is_open()
    transactions[3].commit()
    kept = written[0] + written[2] + written[3]
    assert by_key(read_committed(nadi_manager, scope)) == by_key(texts(kept))


def test_transaction_is_reopened_by_its_id(client: Official, official: Callable[[], Official], scope: str) -> None:
    """A transaction opened by id only reports its state: the package rejects writes to it."""
    client.manager.create_stream(scope, STREAM, 2)
    opened = client.manager.create_transaction_writer(scope, STREAM, 1).begin_txn()
    finder = official().manager.create_transaction_writer(scope, STREAM, 2)
    reopened = finder.get_txn(opened.get_txn_id())
    assert reopened.get_txn_id() == opened.get_txn_id()
    assert reopened.is_open()
    with pytest.raises(OfficialError, match="TxnFailed"):
        reopened.write_event("event")
    opened.commit()
    assert not reopened.is_open()
    assert not finder.get_txn(opened.get_txn_id()).is_open()


def test_transaction_ended_elsewhere_is_rejected_at_once(
    client: Official, nadi_manager: nadi.StreamManager, scope: str
) -> None:
    client.manager.create_stream(scope, STREAM, 2)
    writer = client.manager.create_transaction_writer(scope, STREAM, 1)
    others = nadi_manager.create_transaction_writer(scope, STREAM)
    aborted, committed = writer.begin_txn(), writer.begin_txn()
    others.get_txn(UUID(int=aborted.get_txn_id())).abort(wait=True)
    others.get_txn(UUID(int=committed.get_txn_id())).commit(wait=True)
    begin = time.monotonic()
    assert not aborted.is_open()
    assert not committed.is_open()
    with pytest.raises(OfficialError):
        aborted.commit()
    with pytest.raises(OfficialError):
        committed.abort()
    assert time.monotonic() - begin < 40, "rejections must not be retried"


def test_the_end_of_a_transaction_is_final(client: Official, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 2)
    writer = client.manager.create_transaction_writer(scope, STREAM, 1)
    aborted, committed = writer.begin_txn(), writer.begin_txn()
    aborted.abort()
    client.extras.write(committed, numbered(0, 10))
    committed.commit()
    for transaction in (aborted, committed):
        with pytest.raises(OfficialError, match="TxnFailed"):
            transaction.write_event("event")
        with pytest.raises(OfficialError, match="TxnFailed"):
            transaction.commit()


def test_transactions_through_a_split_and_a_merge(
    client: Official, nadi_manager: nadi.StreamManager, scope: str
) -> None:
    client.manager.create_stream(scope, STREAM, 1)
    transactions = client.manager.create_transaction_writer(scope, STREAM, 1)
    writer = client.manager.create_writer(scope, STREAM)
    opened, written = [], []
    for number, scale in enumerate((split_first, split_first, merge_all)):
        opened.append(transactions.begin_txn())
        events = numbered(0, 30, label=f"transaction {number}")
        client.extras.write(opened[-1], events[:15])
        scale(nadi_manager, scope, STREAM)
        client.extras.write(opened[-1], events[15:])
        plain = numbered(number * 50, number * 50 + 50)
        client.extras.write(writer, plain)
        written += events + plain
    for transaction in opened:
        transaction.commit()
    last = numbered(150, 200)
    client.extras.write(writer, last)
    assert by_key(read_committed(nadi_manager, scope)) == by_key(texts(written + last))


def test_sealed_stream_rejects_transactions(client: Official, nadi_manager: nadi.StreamManager, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 2)
    writer = client.manager.create_transaction_writer(scope, STREAM, 1)
    opened = writer.begin_txn()
    client.extras.write(opened, numbered(0, 10))
    client.manager.seal_stream(scope, STREAM)
    begin = time.monotonic()
    with pytest.raises(OfficialError):
        opened.commit()
    with pytest.raises(OfficialError):
        writer.begin_txn()
    assert time.monotonic() - begin < 40, "rejections must not be retried"
    assert read_all(nadi_manager, scope, STREAM) == []
