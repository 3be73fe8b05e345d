"""What mypy makes of the blocking face, whose methods are made by functions: checked by `script/check`, never run.

`assert_type` fails where a type was lost on the way. What must be refused has a `type: ignore` with the code of its
error: where nothing is refused any more, that one is unused, which is an error too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, assert_type
from uuid import UUID

from nadi.client import (
    Ack,
    Bookmark,
    Checkpoint,
    Event,
    EventRead,
    EventReader,
    EventWriter,
    GroupSize,
    GroupValueReader,
    IndexReader,
    IndexRecord,
    IndexWriter,
    KeyValueTable,
    ReaderGroup,
    ReaderGroupManager,
    SharedMap,
    SharedSet,
    SliceReader,
    StateKind,
    StateSynchronizer,
    StreamInfo,
    StreamManager,
    TableEntry,
    TableValue,
    Transaction,
    TransactionalEventWriter,
    TransactionalValueWriter,
    ValueEvent,
    ValueRead,
    ValueReader,
    ValueTransaction,
    ValueWriter,
    Version,
)
from nadi.client.serializers import Json
from nadi.model.event import EventBlock
from nadi.model.streamcut import StreamCut


def of_index_streams(manager: StreamManager) -> None:
    with manager.create_index_writer("sc", "st", ["t"]) as writer:
        assert_type(writer, IndexWriter)
        assert_type(writer.append({"t": 1}, b"data", after={}), int)
        assert_type(writer.last(), dict[str, int])
        writer.append({"t": "1"})  # type: ignore[dict-item]
    reader = manager.create_index_reader("sc", "st")
    assert_type(reader, IndexReader)
    assert_type(reader.search("t", 5), int)
    assert_type(reader.read(0, follow=True), Iterator[IndexRecord])
    assert_type(reader.first(), IndexRecord | None)


def of_a_manager(manager: StreamManager) -> None:
    assert_type(manager.create_scope("sc"), bool)
    assert_type(manager.stream_info("sc", "st"), StreamInfo)
    assert_type(manager.cuts("sc", "st").tail(), StreamCut)
    assert_type(manager.cuts("sc", "st").after_event_time(5), StreamCut | None)
    assert_type(manager.bookmarks("sc").list(tag="a"), list[Bookmark])
    assert_type(manager.reader_group_manager("sc"), ReaderGroupManager)
    assert_type(manager.table("sc", "t").get(b"k"), TableValue | None)
    assert_type(manager.read_segment_range("sc/st/0.#epoch.0", 0, 9), Iterator[EventBlock])
    assert_type(manager.open_slice("sc", "s"), SliceReader)
    with manager as same:
        assert_type(same, StreamManager)

    manager.create_scope(5)  # type: ignore[arg-type]
    manager.create_scope()  # type: ignore[call-arg]
    manager.create_scope(name="sc")  # type: ignore[call-arg]
    manager.stream_info("sc")  # type: ignore[call-arg]
    manager.delete_scope("sc", True)  # type: ignore[call-arg]
    manager.create_stream("sc", "st", scaling=2)  # type: ignore[arg-type]
    manager.table("sc", 5)  # type: ignore[arg-type]
    manager.open_slice("sc", "s", on_damage="shrug")  # type: ignore[arg-type]
    manager.stream_infos("sc", "st")  # type: ignore[attr-defined]


def of_writers(manager: StreamManager) -> None:
    writer = manager.create_writer("sc", "st", ack_timeout=5.0)
    assert_type(writer, EventWriter)
    assert_type(writer.write_event(b"e", "k"), Ack)
    writer.flush(5)
    writer.close(timeout=5)
    with writer as same:
        assert_type(same, EventWriter)
    writer.write_event("text")  # type: ignore[arg-type]
    writer.flush("soon")  # type: ignore[arg-type]

    values = manager.create_writer("sc", "st", serializer=Json(int))
    assert_type(values, ValueWriter[int])
    assert_type(values.write_event(5), Ack)
    values.write_event("five")  # type: ignore[arg-type]
    values.write_batch(["five"])  # type: ignore[list-item]
    with values as same_values:
        assert_type(same_values, ValueWriter[int])


def of_transactions(manager: StreamManager) -> None:
    writer = manager.create_transaction_writer("sc", "st")
    assert_type(writer, TransactionalEventWriter)
    with writer.begin_txn(lease_ms=20_000) as txn:
        assert_type(txn, Transaction)
        assert_type(txn.txn_id, UUID)
    txn.commit(wait=True, timeout=None)
    txn.commit(True)  # type: ignore[call-arg]
    txn.commit(wait="yes")  # type: ignore[arg-type]
    writer.get_txn(5)  # type: ignore[arg-type]

    values = manager.create_transaction_writer("sc", "st", serializer=Json(int))
    assert_type(values, TransactionalValueWriter[int])
    assert_type(values.begin_txn(), ValueTransaction[int])
    with values.get_txn("0" * 32) as of_values:
        assert_type(of_values, ValueTransaction[int])
        of_values.write_event("five")  # type: ignore[arg-type]


def of_readers(manager: StreamManager) -> None:
    with manager.create_reader("sc", "st") as reader:
        assert_type(reader, SliceReader)
        assert_type(reader.next_block(), tuple[int, EventBlock] | None)
        assert_type(reader.position(), StreamCut)
    with manager.create_reader("sc", "st", serializer=Json(int)) as values:
        assert_type(values, ValueReader[int])
        assert_type(values.next_events(5), list[ValueEvent[int]] | None)
    assert_type(manager.read_events("sc", "st"), Iterator[Event])
    assert_type(manager.read_events("sc", "st", serializer=Json(int)), Iterator[ValueEvent[int]])
    assert_type(reader.next_block(timeout=5.0), tuple[int, EventBlock] | None)
    reader.next_block(timeout="5")  # type: ignore[arg-type]
    reader.position(5)  # type: ignore[call-arg]


def of_groups(group: ReaderGroup) -> None:
    reader = group.create_reader("r")
    assert_type(reader, EventReader)
    assert_type(reader.read_next_event(1.0), EventRead | None)
    assert_type(reader.read_next_block(), EventRead | None)
    reader.close(is_done=False)
    values = group.create_reader("r", serializer=Json(int))
    assert_type(values, GroupValueReader[int])
    assert_type(values.read_next_block(), ValueRead[int] | None)
    assert_type(group.checkpoints(), list[Checkpoint])
    assert_type(group.notifications(every_s=1.0), Iterator[GroupSize])
    assert_type(group.reader_offline("r"), dict[str, StreamCut])
    group.notifications(1.0)  # type: ignore[call-arg]
    reader.close(is_done="done")  # type: ignore[arg-type]


def of_tables(table: KeyValueTable) -> None:
    assert_type(table.get(b"k"), TableEntry | None)
    assert_type(table.put(b"k", b"v", timeout=5), Version)
    assert_type(table.pages(page_size=5), Iterator[list[TableEntry]])
    table.put(b"k", "v")  # type: ignore[arg-type]
    table.pages(size=5)  # type: ignore[call-arg]


def of_shared_state(manager: StreamManager, held: SharedMap[int], members: SharedSet[str]) -> None:
    assert_type(held.get("a"), int | None)
    assert_type(held["a"], int)
    assert_type(held.as_dict(), dict[str, int])
    assert_type(held.compute("a", lambda value: (value or 0) + 1), int | None)
    assert_type(held.put_if_absent("a", 5), bool)
    held.put("a", "five")  # type: ignore[arg-type]
    held.put_all({"a": "five"})  # type: ignore[dict-item]
    assert_type(members.as_set(), set[str])
    members.add(5)  # type: ignore[arg-type]
    assert_type(manager.shared_map("sc", "st", value_type=int), SharedMap[Any])

    kind = StateKind[set[str], str].of_types(set[str], str, set, lambda state, new: state | {new})
    shared = manager.state_synchronizer("sc", "st", kind)
    assert_type(shared, StateSynchronizer[set[str], str])
    assert_type(shared.state, set[str])
    assert_type(shared.refresh(), set[str])
    generate: Callable[[int], list[str]] = lambda number: []  # noqa: E731
    shared.update(generate)  # type: ignore[arg-type]
