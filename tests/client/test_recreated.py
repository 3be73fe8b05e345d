"""A handle to what was deleted and recreated under its name says so, and does nothing to the new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nadi
from nadi.client import KeyValueTableConfiguration, StreamManager
from nadi.client.serializers import Json
from nadi.errors import (
    InvalidStreamCutError,
    KeyValueTableRecreatedError,
    StreamRecreatedError,
    StreamSealedError,
    TransactionFailedError,
)

Use = Callable[[], object]


def _event_writer(manager: StreamManager, stream: str) -> Use:
    writer = manager.create_writer("again", stream)
    writer.write_event(b"old", "k")
    writer.flush()
    return lambda: (writer.write_event(b"late", "k"), writer.flush())


def _idle_writer(manager: StreamManager, stream: str) -> Use:
    writer = manager.create_writer("again", stream)
    return lambda: (writer.write_batch([b"late"] * 3, "k"), writer.flush())


def _value_writer(manager: StreamManager, stream: str) -> Use:
    writer = manager.create_writer("again", stream, serializer=Json())
    writer.write_event({"a": 1})
    writer.flush()
    return lambda: (writer.write_event({"a": 2}), writer.flush())


def _transaction(manager: StreamManager, stream: str) -> Use:
    txn = manager.create_transaction_writer("again", stream).begin_txn()
    txn.write_event(b"old", "k")
    return lambda: (txn.write_event(b"late", "k"), txn.commit())


def _idle_transaction(manager: StreamManager, stream: str) -> Use:
    return manager.create_transaction_writer("again", stream).begin_txn().commit


def _pinged_transaction(manager: StreamManager, stream: str) -> Use:
    return manager.create_transaction_writer("again", stream).begin_txn().ping


def _byte_writer(manager: StreamManager, stream: str) -> Use:
    writer = manager.create_byte_writer("again", stream)
    writer.write(b"old")
    writer.flush()

    def use() -> None:
        writer.write(b"late")
        writer.flush()

    return use


def _sealing_byte_writer(manager: StreamManager, stream: str) -> Use:
    return manager.create_byte_writer("again", stream).close_and_seal


def _byte_reader(manager: StreamManager, stream: str) -> Use:
    return manager.create_byte_reader("again", stream).tail


def _following_byte_reader(manager: StreamManager, stream: str) -> Use:
    reader = manager.create_byte_reader("again", stream, follow=True, timeout=20)
    return lambda: reader.read(1)


def _index_writer(manager: StreamManager, stream: str) -> Use:
    writer = manager.create_index_writer("again", stream, ["n"])
    writer.append({"n": 1}, b"old")
    writer.flush()
    return lambda: (writer.append({"n": 2}, b"late"), writer.flush())


def _index_reader(manager: StreamManager, stream: str) -> Use:
    with manager.create_index_writer("again", stream, ["n"]) as writer:
        writer.append({"n": 1}, b"old")
    reader = manager.create_index_reader("again", stream)
    return lambda: reader.search("n", 1)


def _counter(manager: StreamManager, stream: str) -> Use:
    counter = manager.shared_counter("again", stream)
    counter.add(1)
    return lambda: counter.add(1)


def _map(manager: StreamManager, stream: str) -> Use:
    shared = manager.shared_map("again", stream)
    shared.put("a", 1)
    return shared.refresh


@pytest.mark.parametrize(
    "opened",
    [
        _event_writer,
        _idle_writer,
        _value_writer,
        _transaction,
        _idle_transaction,
        _pinged_transaction,
        _byte_writer,
        _sealing_byte_writer,
        _byte_reader,
        _following_byte_reader,
        _index_writer,
        _index_reader,
        _counter,
        _map,
    ],
)
def test_a_handle_whose_stream_was_recreated_raises(
    opened: Callable[[StreamManager, str], Use], manager: StreamManager
) -> None:
    stream = opened.__name__.strip("_").replace("_", "-")
    manager.create_stream("again", stream)
    use = opened(manager, stream)
    _recreate(manager, stream)
    errors = StreamRecreatedError, StreamSealedError, TransactionFailedError
    with pytest.raises(errors, match=rf"again/{stream} .*(recreated|takes no more events)"):
        use()  # who has seen the old stream sealed, or a transaction of it ended, says that
    info = manager.stream_info("again", stream)
    assert info.head == info.tail
    assert not info.is_sealed


def test_positions_of_a_stream_that_was_recreated_are_refused(manager: StreamManager) -> None:
    manager.create_stream("again", "cuts")
    with manager.create_writer("again", "cuts") as writer:
        writer.write_batch([b"old"] * 5, "k")
    cuts = manager.cuts("again", "cuts")
    old = cuts.tail()
    manager.bookmarks("again").create("old", old)
    _recreate(manager, "cuts")
    for use in (
        lambda: nadi.scan(manager, "again", "cuts", start=old),
        lambda: nadi.scan(manager, "again", "cuts", start="old"),
        lambda: cuts.events_between(old, cuts.tail()),
        lambda: cuts.after(old, 1),
        lambda: manager.truncate_stream(old),
        lambda: next(iter(manager.read_events("again", "cuts", start=old))),
    ):
        with pytest.raises(InvalidStreamCutError):
            use()


def test_a_key_value_table_that_was_recreated_raises(manager: StreamManager) -> None:
    configuration = KeyValueTableConfiguration(primary_key_bytes=1, partitions=2)
    manager.create_key_value_table("again", "table", configuration)
    table = manager.key_value_table("again", "table")
    table.put(b"k", b"old")
    manager.delete_key_value_table("again", "table")
    manager.create_key_value_table("again", "table", configuration)
    uses: list[Callable[[], Any]] = [
        lambda: table.put(b"k", b"late"),
        lambda: table.get(b"k"),
        lambda: list(table.entries()),
    ]
    for use in uses:
        with pytest.raises(KeyValueTableRecreatedError, match="again/table was deleted and recreated: open it again"):
            use()
    assert manager.key_value_table("again", "table").get(b"k") is None


async def test_an_asyncio_writer_whose_stream_was_recreated_raises(manager: StreamManager, uri: str) -> None:
    async with nadi.client.aio.StreamManager(uri) as other:
        await other.create_stream("again", "asyncio")
        writer = await other.create_writer("again", "asyncio")
        await writer.write(b"old", "k")
        await asyncio.to_thread(_recreate, manager, "asyncio")

        async def use() -> None:
            await writer.write(b"late", "k")
            await writer.flush()

        with pytest.raises((StreamRecreatedError, StreamSealedError), match="recreated"):
            await use()


def _recreate(manager: StreamManager, stream: str) -> None:
    manager.seal_stream("again", stream)
    manager.delete_stream("again", stream)
    manager.create_stream("again", stream)


@pytest.fixture
def manager(uri: str) -> Iterator[StreamManager]:
    with StreamManager(uri) as manager:
        manager.create_scope("again")
        yield manager
