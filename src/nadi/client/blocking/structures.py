"""The blocking face of key-value tables and shared state: names and arguments of `nadi.client.aio`, no await.

What is looked up locally is not waited for. Functions given to `update` and `compute` run in the client's
own thread, so they must not call the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from nadi.client import aio
from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.shared.leader_election import Lease
from nadi.client.tables.key_value_registry import KeyValueTableConfiguration
from nadi.client.tables.key_value_table import Modification, TableEntry, TableKey, Version
from nadi.limits import TABLE_ITERATOR_PAGE

S = TypeVar("S")
U = TypeVar("U")
V = TypeVar("V")
E = TypeVar("E", bound="str | int | bytes")
T = TypeVar("T")


class KeyValueTable:
    """See nadi.client.aio.KeyValueTable."""

    def __init__(self, thread: LoopThread, core: aio.KeyValueTable) -> None:
        self._thread, self._core = thread, core

    @property
    def configuration(self) -> KeyValueTableConfiguration:
        """What the table was created with."""
        return self._core.configuration

    def get(self, key: TableKey | bytes, timeout: float | None = None) -> TableEntry | None:
        """The key's entry, or None."""
        return self._thread.run(self._core.get(key, timeout))

    def insert(self, key: TableKey | bytes, value: bytes, timeout: float | None = None) -> Version:
        """Store the value if the key has none."""
        return self._thread.run(self._core.insert(key, value, timeout))

    def put(
        self, key: TableKey | bytes, value: bytes, version: Version | None = None, timeout: float | None = None
    ) -> Version:
        """Store the value; with `version`, only if the key's value still is of that version."""
        return self._thread.run(self._core.put(key, value, version, timeout))

    def remove(self, key: TableKey | bytes, version: Version | None = None, timeout: float | None = None) -> None:
        """Remove the key; with `version`, only if its value still is of that version."""
        self._thread.run(self._core.remove(key, version, timeout))

    def exists(self, key: TableKey | bytes, timeout: float | None = None) -> bool:
        """Whether the key has a value, without reading that."""
        return self._thread.run(self._core.exists(key, timeout))

    def get_all(self, keys: Iterable[TableKey | bytes], timeout: float | None = None) -> list[TableEntry | None]:
        """The entry or None for each key, in order."""
        return self._thread.run(self._core.get_all(keys, timeout))

    def update(self, modifications: Iterable[Modification], timeout: float | None = None) -> list[Version | None]:
        """Do all or none of these, which must be of one primary key."""
        return self._thread.run(self._core.update(modifications, timeout))

    def pages(
        self,
        *,
        primary: bytes | None = None,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes = b"",
        page_size: int = TABLE_ITERATOR_PAGE,
        timeout: float | None = None,
    ) -> Iterator[list[TableEntry]]:
        """Entries in order of their keys, in lists; see nadi.client.aio.KeyValueTable.pages."""
        pages = self._core.pages(
            primary=primary, prefix=prefix, start=start, end=end, page_size=page_size, timeout=timeout
        )
        return self._each(pages)

    def key_pages(
        self,
        *,
        primary: bytes | None = None,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes = b"",
        page_size: int = TABLE_ITERATOR_PAGE,
        timeout: float | None = None,
    ) -> Iterator[list[TableKey]]:
        """As `pages`, but keys alone."""
        pages = self._core.key_pages(
            primary=primary, prefix=prefix, start=start, end=end, page_size=page_size, timeout=timeout
        )
        return self._each(pages)

    def entries(
        self,
        *,
        primary: bytes | None = None,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes = b"",
        timeout: float | None = None,
    ) -> Iterator[TableEntry]:
        """As `pages`, one by one."""
        for page in self.pages(primary=primary, prefix=prefix, start=start, end=end, timeout=timeout):
            yield from page

    def keys(
        self,
        *,
        primary: bytes | None = None,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes = b"",
        timeout: float | None = None,
    ) -> Iterator[TableKey]:
        """As `key_pages`, one by one."""
        for page in self.key_pages(primary=primary, prefix=prefix, start=start, end=end, timeout=timeout):
            yield from page

    def entry_count(self, timeout: float | None = None) -> int:
        """How many entries all partitions hold."""
        return self._thread.run(self._core.entry_count(timeout))

    def _each(self, found: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> T | None:
            return await anext(found, None)

        while (one := self._thread.run(following())) is not None:
            yield one


class StateSynchronizer(Generic[S, U]):
    """See nadi.client.aio.StateSynchronizer."""

    def __init__(self, thread: LoopThread, core: aio.StateSynchronizer[S, U]) -> None:
        self._thread, self._core = thread, core

    @property
    def state(self) -> S:
        """What is known here now; not to be changed but by updates."""
        return self._core.state

    @property
    def revision(self) -> int:
        """Up to where in the stream the state is known."""
        return self._core.revision

    def refresh(self, timeout: float | None = None) -> S:
        """Apply what others did, and give the state."""
        return self._thread.run(self._core.refresh(timeout))

    def initialize(self, state: S, timeout: float | None = None) -> bool:
        """Begin with this state instead of the kind's own; False if the stream has records already."""
        return self._thread.run(self._core.initialize(state, timeout))

    def update(self, generate: Callable[[S], Sequence[U]], timeout: float | None = None) -> Sequence[U]:
        """Store the updates that `generate` makes of the present state, all or none; those stored."""
        return self._thread.run(self._core.update(generate, timeout))

    def compact(self, *, keep_history: bool = True, timeout: float | None = None) -> None:
        """Store the whole state, for all who come later to begin at."""
        self._thread.run(self._core.compact(keep_history=keep_history, timeout=timeout))


class SharedState:
    """See nadi.client.aio.SharedState."""

    def __init__(self, thread: LoopThread, core: aio.SharedState[Any, Any]) -> None:
        self._thread, self._shared = thread, core

    @property
    def name(self) -> str:
        """scope/stream"""
        return self._shared.name

    @property
    def revision(self) -> int:
        """Up to where in the stream the state is known here."""
        return self._shared.revision

    def refresh(self, timeout: float | None = None) -> None:
        """See what others did."""
        self._thread.run(self._shared.refresh(timeout))

    def compact(self, *, keep_history: bool = True, timeout: float | None = None) -> None:
        """Let who opens it later begin at the present state."""
        self._thread.run(self._shared.compact(keep_history=keep_history, timeout=timeout))


class SharedMap(SharedState, Generic[V]):
    """See nadi.client.aio.SharedMap."""

    def __init__(self, thread: LoopThread, core: aio.SharedMap[V]) -> None:
        super().__init__(thread, core)
        self._core = core

    def get(self, key: str, default: V | None = None) -> V | None:
        """The value as far as is known here; `default` if the key has none."""
        return self._core.get(key, default)

    def __getitem__(self, key: str) -> V:
        return self._core[key]

    def __contains__(self, key: object) -> bool:
        return key in self._core

    def __len__(self) -> int:
        return len(self._core)

    def __iter__(self) -> Iterator[str]:
        return iter(self._core)

    def as_dict(self) -> dict[str, V]:
        """A copy of what is known here."""
        return self._core.as_dict()

    def put(self, key: str, value: V, timeout: float | None = None) -> None:
        """Give the key this value, whatever it had."""
        self._thread.run(self._core.put(key, value, timeout))

    def put_all(self, items: Mapping[str, V], timeout: float | None = None) -> None:
        """All of them in one update."""
        self._thread.run(self._core.put_all(items, timeout))

    def put_if_absent(self, key: str, value: V, timeout: float | None = None) -> bool:
        """False if the key had a value."""
        return self._thread.run(self._core.put_if_absent(key, value, timeout))

    def replace(self, key: str, expected: V, value: V, timeout: float | None = None) -> bool:
        """False unless the key's value was `expected`."""
        return self._thread.run(self._core.replace(key, expected, value, timeout))

    def compute(self, key: str, function: Callable[[V | None], V | None], timeout: float | None = None) -> V | None:
        """Make the key's value what `function` makes of it, None standing for no value; the new value."""
        return self._thread.run(self._core.compute(key, function, timeout))

    def remove(self, key: str, timeout: float | None = None) -> bool:
        """False if there was no such key."""
        return self._thread.run(self._core.remove(key, timeout))

    def clear(self, timeout: float | None = None) -> None:
        """Remove all keys in one update."""
        self._thread.run(self._core.clear(timeout))


class SharedSet(SharedState, Generic[E]):
    """See nadi.client.aio.SharedSet."""

    def __init__(self, thread: LoopThread, core: aio.SharedSet[E]) -> None:
        super().__init__(thread, core)
        self._core = core

    def __contains__(self, element: object) -> bool:
        return element in self._core

    def __len__(self) -> int:
        return len(self._core)

    def __iter__(self) -> Iterator[E]:
        return iter(self._core)

    def as_set(self) -> set[E]:
        """A copy of what is known here."""
        return self._core.as_set()

    def add(self, element: E, timeout: float | None = None) -> bool:
        """False if it was in the set."""
        return self._thread.run(self._core.add(element, timeout))

    def discard(self, element: E, timeout: float | None = None) -> bool:
        """False if it was not in the set."""
        return self._thread.run(self._core.discard(element, timeout))

    def change(self, added: Iterable[E], removed: Iterable[E] = (), timeout: float | None = None) -> bool:
        """Add some and remove others in one update; False if that changed nothing."""
        return self._thread.run(self._core.change(added, removed, timeout))


class SharedCounter(SharedState):
    """See nadi.client.aio.SharedCounter."""

    def __init__(self, thread: LoopThread, core: aio.SharedCounter) -> None:
        super().__init__(thread, core)
        self._core = core

    @property
    def value(self) -> int:
        """The sum as far as is known here: as of the last `refresh` or change."""
        return self._core.value

    def add(self, amount: int = 1, timeout: float | None = None) -> int:
        """The new value."""
        return self._thread.run(self._core.add(amount, timeout))

    def compare_and_set(self, expected: int, value: int, timeout: float | None = None) -> bool:
        """False unless the value was `expected`."""
        return self._thread.run(self._core.compare_and_set(expected, value, timeout))


class Journal(SharedState):
    """See nadi.client.aio.Journal."""

    def __init__(self, thread: LoopThread, core: aio.Journal) -> None:
        super().__init__(thread, core)
        self._core = core

    @property
    def first_index(self) -> int:
        """Of the first entry that is kept."""
        return self._core.first_index

    @property
    def next_index(self) -> int:
        """Of the entry that is appended next, as far as is known here."""
        return self._core.next_index

    def __len__(self) -> int:
        return len(self._core)

    def entries(self, start: int | None = None) -> list[bytes]:
        """The entries from index `start` on that are kept, as far as is known here."""
        return self._core.entries(start)

    def append(self, entry: bytes, timeout: float | None = None) -> int:
        """The entry's index."""
        return self._thread.run(self._core.append(entry, timeout))

    def append_all(self, entries: Sequence[bytes], timeout: float | None = None) -> int:
        """Append them one after another, all or none; the index of the first."""
        return self._thread.run(self._core.append_all(entries, timeout))

    def append_at(self, index: int, entry: bytes, timeout: float | None = None) -> bool:
        """False if somebody else has appended at `index` already, or it is not the next."""
        return self._thread.run(self._core.append_at(index, entry, timeout))

    def trim(self, before: int, timeout: float | None = None) -> None:
        """Drop the entries before index `before`."""
        self._thread.run(self._core.trim(before, timeout))


class LeaderElection(SharedState):
    """See nadi.client.aio.LeaderElection."""

    def __init__(self, thread: LoopThread, core: aio.LeaderElection) -> None:
        super().__init__(thread, core)
        self._core = core

    def token(self, now_ms: int) -> int | None:
        """The fencing token if this one leads at that time, as far as is known here."""
        return self._core.token(now_ms)

    def leader(self, now_ms: int) -> Lease | None:
        """The lease of who leads at that time, as far as is known here."""
        return self._core.leader(now_ms)

    def campaign(self, now_ms: int, lease_ms: int, timeout: float | None = None) -> int | None:
        """Lead until `now_ms + lease_ms` if nobody else does, or go on leading; the token, or None."""
        return self._thread.run(self._core.campaign(now_ms, lease_ms, timeout))

    def resign(self, timeout: float | None = None) -> bool:
        """Let somebody else lead at once; False if this one didn't lead any more."""
        return self._thread.run(self._core.resign(timeout))
