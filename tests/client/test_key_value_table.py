"""Key-value tables against a server in another process."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from nadi.client import (
    Insert,
    KeyValueTable,
    KeyValueTableConfiguration,
    Put,
    Remove,
    StreamManager,
    TableEntry,
    TableKey,
    Version,
)
from nadi.errors import (
    ConditionFailedError,
    InvalidArgumentError,
    InvalidNameError,
    KeyValueTableNotFoundError,
    ScopeNotFoundError,
)
from nadi.model.keyspace import primary_key_position


@pytest.fixture(scope="module")
def manager(uri: str) -> Iterator[StreamManager]:
    with StreamManager(uri) as manager:
        yield manager


@pytest.fixture(scope="module")
def grid(manager: StreamManager) -> KeyValueTable:
    """50 primary keys with 3 secondary keys each, over 4 partitions."""
    manager.create_key_value_table("sc", "grid", KeyValueTableConfiguration(2, 1, partitions=4))
    table = manager.key_value_table("sc", "grid")
    for row in range(50):
        table.update([Insert(TableKey(b"%02d" % row, b"%d" % column), b"%d" % (row * column)) for column in range(3)])
    return table


def test_tables_are_created_listed_and_deleted(manager: StreamManager) -> None:
    config = KeyValueTableConfiguration(8, 4, partitions=3)
    assert manager.create_key_value_table("sc", "short", config)
    assert not manager.create_key_value_table("sc", "short", config)
    assert "short" in manager.list_key_value_tables("sc")
    assert manager.key_value_table_configuration("sc", "short") == config
    table = manager.key_value_table("sc", "short")
    assert manager.delete_key_value_table("sc", "short")
    with pytest.raises(KeyValueTableNotFoundError):
        table.put(TableKey(b"12345678", b"1234"), b"")
    assert not manager.delete_key_value_table("sc", "short")
    with pytest.raises(KeyValueTableNotFoundError):
        manager.key_value_table("sc", "short")
    with pytest.raises(ScopeNotFoundError):
        manager.create_key_value_table("none", "short", config)
    with pytest.raises(InvalidNameError):
        manager.create_key_value_table("sc", "a/b", config)
    for lengths in ((0, 0), (1, -1), (200, 100)):
        with pytest.raises(InvalidArgumentError):
            KeyValueTableConfiguration(*lengths)


def test_values_other_than_bytes_are_rejected_without_side_effects(manager: StreamManager) -> None:
    manager.create_key_value_table("sc", "types", KeyValueTableConfiguration(4))
    table, plain = manager.key_value_table("sc", "types"), manager.table("sc", "plain")
    plain.create()
    wrong: Any
    for wrong in ("text", None, 4, [b"a"], pa.array([1])):
        for call in (
            lambda wrong=wrong: table.put(b"0001", wrong),
            lambda wrong=wrong: table.put(wrong, b""),
            lambda wrong=wrong: table.get(TableKey(wrong)),
            lambda wrong=wrong: list(table.entries(start=wrong)),
            lambda wrong=wrong: plain.put(b"a", wrong),
            lambda wrong=wrong: plain.get(wrong),
        ):
            with pytest.raises(InvalidArgumentError):
                call()
    words: Any = memoryview(array("i", [1, 2]))
    table.put(b"0001", words)
    found = table.get(b"0001", timeout=60)
    assert found is not None
    assert found.value == words.tobytes()
    entries = table.entries()
    manager.delete_key_value_table("sc", "types")
    with pytest.raises(KeyValueTableNotFoundError):
        next(entries)


def test_conditions(manager: StreamManager) -> None:
    manager.create_key_value_table("sc", "conditions", KeyValueTableConfiguration(1, partitions=2))
    table = manager.key_value_table("sc", "conditions")
    assert table.get(b"a") is None
    assert not table.exists(b"a")
    first = table.insert(b"a", b"1")
    assert table.exists(b"a")
    with pytest.raises(ConditionFailedError):
        table.insert(b"a", b"2")
    second = table.put(b"a", b"2", first)
    with pytest.raises(ConditionFailedError):
        table.put(b"a", b"3", first)
    assert table.get(b"a") == TableEntry(TableKey(b"a"), b"2", second)
    assert table.put(b"a", b"4") != second
    with pytest.raises(ConditionFailedError):
        table.remove(b"a", second)
    with pytest.raises(ConditionFailedError):
        table.put(b"a", b"5", Version(second.segment_id + 1, second.number))
    entry = table.get(b"a")
    assert entry is not None
    table.remove(b"a", Version.from_text(str(entry.version)))
    assert table.get(b"a") is None
    table.remove(b"a")
    with pytest.raises(ConditionFailedError):
        table.put(b"a", b"6", entry.version)
    for key in (b"", b"ab", TableKey(b"a", b"b")):
        with pytest.raises(InvalidArgumentError):
            table.put(key, b"")


def test_update_is_atomic(manager: StreamManager) -> None:
    manager.create_key_value_table("sc", "atomic", KeyValueTableConfiguration(1, 1))
    table = manager.key_value_table("sc", "atomic")
    one, two, three = (TableKey(b"p", b"%d" % n) for n in (1, 2, 3))
    versions = table.update([Insert(one, b"1"), Put(two, b"2")])
    with pytest.raises(ConditionFailedError):
        table.update([Put(three, b"3"), Put(one, b"9", versions[0]), Insert(two, b"9")])
    assert [entry and entry.value for entry in table.get_all([one, two, three])] == [b"1", b"2", None]
    with pytest.raises(ConditionFailedError):
        table.update([Remove(one), Remove(two, versions[0])])
    assert table.exists(one)
    assert table.update([Remove(one), Remove(two, versions[1])]) == [None, None]
    assert table.entry_count() == 0
    assert table.update([]) == []
    with pytest.raises(InvalidArgumentError):
        table.update([Remove(one), Put(two, b"")])
    with pytest.raises(InvalidArgumentError):
        table.update([Put(one, b""), Put(TableKey(b"q", b"1"), b"")])


def test_every_partition_is_used_as_java_does(manager: StreamManager, grid: KeyValueTable) -> None:
    primaries = [b"%02d" % row for row in range(50)]
    partitions = {primary: int(primary_key_position(primary) * 4) for primary in primaries}
    assert set(partitions.values()) == {0, 1, 2, 3}
    for primary, partition in partitions.items():
        entry = grid.get(TableKey(primary, b"0"))
        assert entry is not None
        assert entry.version.segment_id == partition


def test_ranges(grid: KeyValueTable) -> None:
    whole = [TableKey(b"%02d" % row, b"%d" % column) for row in range(50) for column in range(3)]
    assert list(grid.keys()) == whole
    assert [entry.key for entry in grid.entries()] == whole
    assert [entry.value for entry in grid.entries(primary=b"07")] == [b"0", b"7", b"14"]
    assert list(grid.keys(start=b"10", end=b"12")) == whole[30:39]
    assert list(grid.keys(start=b"48")) == whole[144:]
    assert list(grid.keys(end=b"01")) == whole[:6]
    assert list(grid.keys(prefix=b"3")) == whole[90:120]
    assert list(grid.keys(prefix=b"3", start=b"38")) == whole[114:120]
    assert list(grid.keys(primary=b"49", start=b"1")) == whole[148:]
    assert list(grid.keys(primary=b"49", start=b"1", end=b"1")) == whole[148:149]
    assert list(grid.keys(start=b"12", end=b"10")) == []
    assert list(grid.keys(primary=b"xx")) == []
    with pytest.raises(InvalidArgumentError):
        list(grid.keys(start=b"123"))


@pytest.mark.parametrize("page_size", [1, 7, 50, 1000])
def test_pages(grid: KeyValueTable, page_size: int) -> None:
    pages = list(grid.pages(page_size=page_size))
    assert all(len(page) == page_size for page in pages[:-1])
    assert 0 < len(pages[-1]) <= page_size
    assert [entry.key for page in pages for entry in page] == list(grid.keys())
    assert [key for page in grid.key_pages(page_size=page_size) for key in page] == list(grid.keys())


def test_a_page_must_have_a_size(grid: KeyValueTable) -> None:
    with pytest.raises(InvalidArgumentError):
        next(grid.pages(page_size=0))
