"""The blocking face of key-value tables and shared state.

What is looked up locally is not waited for. Functions given to `update` and `compute` run in the client's
own thread, so they must not call the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from nadi.client import aio
from nadi.client.blocking.face import Closing, Face, by_hand, described, each, ends, same, waits
from nadi.client.bytestream.byte_writer import check_lost, is_closed
from nadi.client.indexstream.index_reader import bytes_of
from nadi.client.tables.key_value_registry import KeyValueTableConfiguration


@described(aio.IndexReader)
class IndexReader(Closing[aio.IndexReader]):
    """See nadi.client.aio.IndexReader."""

    record_size = waits(aio.IndexReader.record_size)
    head = waits(aio.IndexReader.head)
    tail = waits(aio.IndexReader.tail)
    first = waits(aio.IndexReader.first)
    last = waits(aio.IndexReader.last)
    at = waits(aio.IndexReader.at)
    search = waits(aio.IndexReader.search)
    read = each(aio.IndexReader.read)
    close = ends(waits(aio.IndexReader.close))


@described(aio.IndexWriter)
class IndexWriter(Closing[aio.IndexWriter]):
    """See nadi.client.aio.IndexWriter."""

    last = same(aio.IndexWriter.last)
    tell = same(aio.IndexWriter.tell)
    append = waits(aio.IndexWriter.append)
    flush = waits(aio.IndexWriter.flush)
    truncate_before = waits(aio.IndexWriter.truncate_before)
    close_and_seal = waits(aio.IndexWriter.close_and_seal)

    @property
    def record_size(self) -> int:
        """How many bytes each record of the stream has."""
        return self._core.record_size

    @property
    def data_limit(self) -> int:
        """How many bytes of data a record can have."""
        return self._core.data_limit

    @by_hand(aio.IndexWriter.close)
    def close(self, timeout: float | None = None) -> None:
        """See nadi.client.aio.IndexWriter.close."""
        if is_closed(bytes_of(self._core)):  # perhaps with the client, whose thread is no more
            check_lost(bytes_of(self._core))
        else:
            self._thread.run(self._core.close(timeout))


S = TypeVar("S")
U = TypeVar("U")
V = TypeVar("V")
E = TypeVar("E", bound="str | int | bytes")
Core = TypeVar("Core", bound=aio.SharedState[Any, Any])


@described(aio.Table)
class Table(Face[aio.Table]):
    """See nadi.client.aio.Table."""

    create = waits(aio.Table.create)
    delete = waits(aio.Table.delete)
    get = waits(aio.Table.get)
    put = waits(aio.Table.put)
    remove = waits(aio.Table.remove)


@described(aio.KeyValueTable)
class KeyValueTable(Face[aio.KeyValueTable]):
    """See nadi.client.aio.KeyValueTable."""

    get = waits(aio.KeyValueTable.get)
    insert = waits(aio.KeyValueTable.insert)
    put = waits(aio.KeyValueTable.put)
    remove = waits(aio.KeyValueTable.remove)
    exists = waits(aio.KeyValueTable.exists)
    get_all = waits(aio.KeyValueTable.get_all)
    update = waits(aio.KeyValueTable.update)
    pages = each(aio.KeyValueTable.pages)
    key_pages = each(aio.KeyValueTable.key_pages)
    entries = each(aio.KeyValueTable.entries)
    keys = each(aio.KeyValueTable.keys)
    entry_count = waits(aio.KeyValueTable.entry_count)

    @property
    def configuration(self) -> KeyValueTableConfiguration:
        """What the table was created with."""
        return self._core.configuration


@described(aio.StateSynchronizer)
class StateSynchronizer(Face[aio.StateSynchronizer[S, U]]):
    """See nadi.client.aio.StateSynchronizer."""

    refresh = waits(aio.StateSynchronizer[S, U].refresh)
    initialize = waits(aio.StateSynchronizer[S, U].initialize)
    update = waits(aio.StateSynchronizer[S, U].update)
    compact = waits(aio.StateSynchronizer[S, U].compact)

    @property
    def state(self) -> S:
        """What is known here now; not to be changed but by updates."""
        return self._core.state

    @property
    def revision(self) -> int:
        """Up to where in the stream the state is known; 0 before the first `refresh`."""
        return self._core.revision


@described(aio.SharedState)
class SharedState(Face[Core]):
    """See nadi.client.aio.SharedState."""

    refresh = waits(aio.SharedState[Any, Any].refresh)
    compact = waits(aio.SharedState[Any, Any].compact)

    @property
    def name(self) -> str:
        """scope/stream"""
        return self._core.name

    @property
    def revision(self) -> int:
        """Up to where in the stream the state is known here."""
        return self._core.revision


@described(aio.SharedMap)
class SharedMap(SharedState[aio.SharedMap[V]], Generic[V]):
    """See nadi.client.aio.SharedMap."""

    get = same(aio.SharedMap[V].get)
    as_dict = same(aio.SharedMap[V].as_dict)
    put = waits(aio.SharedMap[V].put)
    put_all = waits(aio.SharedMap[V].put_all)
    put_if_absent = waits(aio.SharedMap[V].put_if_absent)
    replace = waits(aio.SharedMap[V].replace)
    compute = waits(aio.SharedMap[V].compute)
    remove = waits(aio.SharedMap[V].remove)
    clear = waits(aio.SharedMap[V].clear)

    def __getitem__(self, key: str) -> V:
        return self._core[key]

    def __contains__(self, key: object) -> bool:
        return key in self._core

    def __len__(self) -> int:
        return len(self._core)

    def __iter__(self) -> Iterator[str]:
        return iter(self._core)


@described(aio.SharedSet)
class SharedSet(SharedState[aio.SharedSet[E]], Generic[E]):
    """See nadi.client.aio.SharedSet."""

    as_set = same(aio.SharedSet[E].as_set)
    add = waits(aio.SharedSet[E].add)
    discard = waits(aio.SharedSet[E].discard)
    change = waits(aio.SharedSet[E].change)

    def __contains__(self, element: object) -> bool:
        return element in self._core

    def __len__(self) -> int:
        return len(self._core)

    def __iter__(self) -> Iterator[E]:
        return iter(self._core)


@described(aio.SharedCounter)
class SharedCounter(SharedState[aio.SharedCounter]):
    """See nadi.client.aio.SharedCounter."""

    add = waits(aio.SharedCounter.add)
    compare_and_set = waits(aio.SharedCounter.compare_and_set)

    @property
    def value(self) -> int:
        """The value as of this object's last `refresh` or change."""
        return self._core.value


@described(aio.Journal)
class Journal(SharedState[aio.Journal]):
    """See nadi.client.aio.Journal."""

    entries = same(aio.Journal.entries)
    append = waits(aio.Journal.append)
    append_all = waits(aio.Journal.append_all)
    append_at = waits(aio.Journal.append_at)
    trim = waits(aio.Journal.trim)

    @property
    def first_index(self) -> int:
        """The index of the first entry that is kept."""
        return self._core.first_index

    @property
    def next_index(self) -> int:
        """The index of the entry that is appended next, as far as this object knows."""
        return self._core.next_index

    def __len__(self) -> int:
        return len(self._core)


@described(aio.LeaderElection)
class LeaderElection(SharedState[aio.LeaderElection]):
    """See nadi.client.aio.LeaderElection."""

    token = same(aio.LeaderElection.token)
    leader = same(aio.LeaderElection.leader)
    campaign = waits(aio.LeaderElection.campaign)
    resign = waits(aio.LeaderElection.resign)
