"""Provide a map, a set, a counter, a journal and a leader election that many processes share.

Each structure is a StateSynchronizer with a specific kind. Reads are local and current at the last `refresh` or
change; every change is applied to the newest state and stored before its call returns. With `as_of` the structures show
the state at a stream cut and are read-only.

`LeaderElection` elects one leader among many processes for the length of a lease, with a token that increases with each
leader. The caller passes the time as `now_ms`, so the participants' clocks must agree to within a lease. Because clocks
can fail and processes can stall, a leader passes its token along with its commands, and the receiver rejects a token
lower than one it has seen: this makes a deposed leader harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from nadi.client.control.arguments import checked
from nadi.client.state_sync.state_synchronizer import StateKind, StateSynchronizer
from nadi.errors import InvalidArgumentError

S = TypeVar("S")
U = TypeVar("U")
V = TypeVar("V")
E = TypeVar("E", bound="str | int | bytes")
_MISSING: Any = object()


@checked()
class SharedState(Generic[S, U]):
    """Methods of all shared structures. `timeout`: seconds per call; None for the client's timeout."""

    def __init__(self, synchronizer: StateSynchronizer[S, U]) -> None:
        self._synchronizer = synchronizer

    @property
    def name(self) -> str:
        """The stream's name as scope/stream."""
        return self._synchronizer.name

    @property
    def revision(self) -> int:
        """The revision up to which the local copy is current."""
        return self._synchronizer.revision

    async def refresh(self, timeout: float | None = None) -> None:
        """Apply the changes of other processes."""
        await self._synchronizer.refresh(timeout)

    async def compact(self, *, keep_history: bool = True, timeout: float | None = None) -> None:
        """Let later opens start from the current state; see StateSynchronizer.compact."""
        await self._synchronizer.compact(keep_history=keep_history, timeout=timeout)

    @property
    def _state(self) -> S:
        return self._synchronizer.state

    async def _change(self, generate: Callable[[S], Sequence[U]], timeout: float | None) -> bool:
        return bool(await self._synchronizer.update(generate, timeout))


# --- map -----------------------------------------------------------------------------------------


class _PutItems(msgspec.Struct, frozen=True, array_like=True, tag=0):
    items: dict[str, Any]


class _RemoveKeys(msgspec.Struct, frozen=True, array_like=True, tag=1):
    keys: list[str]


class _Clear(msgspec.Struct, frozen=True, array_like=True, tag=2):
    pass


_MapUpdate = _PutItems | _RemoveKeys | _Clear


def _changed_map(state: dict[str, Any], update: _MapUpdate) -> dict[str, Any]:
    match update:
        case _PutItems(items):
            state.update(items)
        case _RemoveKeys(keys):
            for key in keys:
                state.pop(key, None)
        case _Clear():
            state.clear()
    return state


def map_kind(value_type: Any = Any) -> StateKind[dict[str, Any], _MapUpdate]:
    """Return the kind of maps from str to `value_type`, which msgspec must support."""
    put = msgspec.defstruct(
        "_PutItems", [("items", dict[str, value_type])], bases=(_PutItems,), frozen=True, array_like=True, tag=0
    )
    return StateKind.of_types(dict[str, value_type], put | _RemoveKeys | _Clear, dict, _changed_map)


@checked(without=("get",))
class SharedMap(SharedState[dict[str, Any], _MapUpdate], Generic[V]):
    """A map from str to values."""

    def get(self, key: str, default: V | None = None) -> V | None:
        """Return the key's value in the local copy; `default` if it is missing."""
        return self._state.get(key, default)

    def __getitem__(self, key: str) -> V:
        value: V = self._state[key]
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._state

    def __len__(self) -> int:
        return len(self._state)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._state))

    def as_dict(self) -> dict[str, V]:
        """Return a copy of the local contents."""
        return dict(self._state)

    async def put(self, key: str, value: V, timeout: float | None = None) -> None:
        """Set the key's value unconditionally."""
        await self.put_all({key: value}, timeout)

    async def put_all(self, items: Mapping[str, V], timeout: float | None = None) -> None:
        """Set several values in one update."""
        update = _PutItems(dict(items))
        await self._change(lambda _: [update] if update.items else [], timeout)

    async def put_if_absent(self, key: str, value: V, timeout: float | None = None) -> bool:
        """Set the key's value if it is missing; return False if it exists."""
        return await self._change(lambda state: [] if key in state else [_PutItems({key: value})], timeout)

    async def replace(self, key: str, expected: V, value: V, timeout: float | None = None) -> bool:
        """Set the key's value if it is `expected`; return False otherwise."""

        def generate(state: dict[str, Any]) -> list[_MapUpdate]:
            return [_PutItems({key: value})] if state.get(key, _MISSING) == expected else []

        return await self._change(generate, timeout)

    async def compute(
        self, key: str, function: Callable[[V | None], V | None], timeout: float | None = None
    ) -> V | None:
        """Set the key's value to the result of `function`, called with the current one; None means missing. Return the
        new value.

        `function` is called again if another process was faster, and must not change its argument.
        """
        value: V | None = None

        def generate(state: dict[str, Any]) -> list[_MapUpdate]:
            nonlocal value
            value = function(state.get(key))
            if value is None:
                return [_RemoveKeys([key])] if key in state else []
            return [_PutItems({key: value})]

        await self._change(generate, timeout)
        return value

    async def remove(self, key: str, timeout: float | None = None) -> bool:
        """Remove a key; return False if it is missing."""
        return await self._change(lambda state: [_RemoveKeys([key])] if key in state else [], timeout)

    async def clear(self, timeout: float | None = None) -> None:
        """Remove all keys in one update."""
        await self._change(lambda state: [_Clear()] if state else [], timeout)


# --- set -----------------------------------------------------------------------------------------


class _SetChange(msgspec.Struct, frozen=True, array_like=True):
    added: list[Any]
    removed: list[Any]


def _changed_set(state: set[Any], update: _SetChange) -> set[Any]:
    state.update(update.added)
    state.difference_update(update.removed)
    return state


def set_kind() -> StateKind[set[Any], _SetChange]:
    return StateKind.of_types(set[Any], _SetChange, set, _changed_set)


@checked()
class SharedSet(SharedState[set[Any], _SetChange], Generic[E]):
    """A set of str, int or bytes elements."""

    def __contains__(self, element: object) -> bool:
        return element in self._state

    def __len__(self) -> int:
        return len(self._state)

    def __iter__(self) -> Iterator[E]:
        return iter(list(self._state))

    def as_set(self) -> set[E]:
        """Return a copy of the local contents."""
        return set(self._state)

    async def add(self, element: E, timeout: float | None = None) -> bool:
        """Add an element; return False if the set already has it."""
        return await self.change([element], (), timeout)

    async def discard(self, element: E, timeout: float | None = None) -> bool:
        """Remove an element; return False if it is missing."""
        return await self.change((), [element], timeout)

    async def change(self, added: Iterable[E], removed: Iterable[E] = (), timeout: float | None = None) -> bool:
        """Add and remove elements in one update; return False if the set stays the same."""
        to_add, to_remove = list(added), list(removed)
        for element in (*to_add, *to_remove):
            if not isinstance(element, str | int | bytes):
                raise InvalidArgumentError(f"{element!r} can't be in a shared set: use str, int or bytes")
        new, old = set(to_add), set(to_remove)

        def generate(state: set[Any]) -> list[_SetChange]:
            update = _SetChange(list(new - state - old), list(old & state))
            return [update] if update.added or update.removed else []

        return await self._change(generate, timeout)


# --- counter -------------------------------------------------------------------------------------


def counter_kind() -> StateKind[int, int]:
    return StateKind.of_types(int, int, int, int.__add__)


@checked()
class SharedCounter(SharedState[int, int]):
    """A 64-bit integer."""

    @property
    def value(self) -> int:
        """The value at this object's last `refresh` or change."""
        return self._state

    async def add(self, amount: int = 1, timeout: float | None = None) -> int:
        """Add to the counter and return the new value, which no other call with the same amount returns."""
        if not isinstance(amount, int):
            raise InvalidArgumentError(f"the amount must be an integer, not {amount!r}")
        value = 0

        def generate(state: int) -> list[int]:
            nonlocal value
            value = state + amount
            if not -(1 << 63) <= value < 1 << 63:
                raise InvalidArgumentError(f"the counter {self.name} would overflow 64 bits with {value}")
            return [amount]

        await self._change(generate, timeout)
        return value

    async def compare_and_set(self, expected: int, value: int, timeout: float | None = None) -> bool:
        """Set the value if it is `expected`; return False otherwise."""
        done = False

        def generate(state: int) -> list[int]:
            nonlocal done
            done = state == expected
            return [value - state] if done and value != state else []

        await self._change(generate, timeout)
        return done


# --- journal -------------------------------------------------------------------------------------


class _Entries(msgspec.Struct, array_like=True):
    first: int = 0  # index of the first stored entry
    stored: list[bytes] = []


class _JournalAppend(msgspec.Struct, frozen=True, array_like=True, tag=0):
    entries: list[bytes]


class _Trim(msgspec.Struct, frozen=True, array_like=True, tag=1):
    before: int


def _changed_journal(state: _Entries, update: _JournalAppend | _Trim) -> _Entries:
    if isinstance(update, _JournalAppend):
        state.stored += update.entries
    elif update.before > state.first:
        del state.stored[: update.before - state.first]
        state.first = update.before
    return state


def journal_kind() -> StateKind[_Entries, _JournalAppend | _Trim]:
    return StateKind.of_types(_Entries, _JournalAppend | _Trim, _Entries, _changed_journal)


@checked()
class Journal(SharedState[_Entries, "_JournalAppend | _Trim"]):
    """A list of entries in the same order for all processes, each with an index that never changes."""

    @property
    def first_index(self) -> int:
        """The index of the first entry that was not trimmed."""
        return self._state.first

    @property
    def next_index(self) -> int:
        """The index of the next entry, according to the local copy."""
        return self._state.first + len(self._state.stored)

    def __len__(self) -> int:
        return len(self._state.stored)

    def entries(self, start: int | None = None) -> list[bytes]:
        """Return the local copy's entries from index `start` on."""
        return self._state.stored[max((start or 0) - self._state.first, 0) :]

    async def append(self, entry: bytes, timeout: float | None = None) -> int:
        """Append an entry and return its index."""
        return await self.append_all([entry], timeout)

    async def append_all(self, entries: Sequence[bytes], timeout: float | None = None) -> int:
        """Append consecutive entries atomically; return the index of the first."""
        index = 0

        def generate(state: _Entries) -> list[_JournalAppend | _Trim]:
            nonlocal index
            index = state.first + len(state.stored)
            return [_JournalAppend(list(entries))] if entries else []

        await self._change(generate, timeout)
        return index

    async def append_at(self, index: int, entry: bytes, timeout: float | None = None) -> bool:
        """Append an entry if `index` is the next index; return False otherwise."""

        def generate(state: _Entries) -> list[_JournalAppend | _Trim]:
            return [_JournalAppend([entry])] if index == state.first + len(state.stored) else []

        return await self._change(generate, timeout)

    async def trim(self, before: int, timeout: float | None = None) -> None:
        """Drop the entries before index `before`."""

        def generate(state: _Entries) -> list[_JournalAppend | _Trim]:
            last = min(before, state.first + len(state.stored))
            return [_Trim(last)] if last > state.first else []

        await self._change(generate, timeout)


class LeaderLease(msgspec.Struct, frozen=True, array_like=True):
    """A leader, the end of its lease and its token; the token is 0 before the first leader."""

    leader: str = ""
    token: int = 0
    until_ms: int = 0


def election_kind() -> StateKind[LeaderLease, LeaderLease]:
    return StateKind.of_types(LeaderLease, LeaderLease, LeaderLease, lambda _, update: update)


@checked()
class LeaderElection(SharedState[LeaderLease, LeaderLease]):
    """One participant of an election, named `participant`."""

    def __init__(self, synchronizer: StateSynchronizer[LeaderLease, LeaderLease], participant: str) -> None:
        super().__init__(synchronizer)
        self.participant = participant
        self._token: int | None = None  # the token of this object's last leadership

    def token(self, now_ms: int) -> int | None:
        """Return the fencing token if this participant leads at `now_ms`, according to the local copy; else None."""
        leads = self._token == self._state.token and self._state.until_ms > now_ms
        return self._token if leads else None

    def leader(self, now_ms: int) -> LeaderLease | None:
        """Return the lease of the leader at `now_ms`, according to the local copy; None without a leader."""
        return self._state if self._state.until_ms > now_ms else None

    async def campaign(self, now_ms: int, lease_ms: int, timeout: float | None = None) -> int | None:
        """Become or remain leader until `now_ms + lease_ms`; return the token, or None if another participant leads.

        A leader calls this again well before its lease ends. The name alone doesn't identify a leader, only the token
        that this object received: another process with the same name waits like any other participant.
        """
        if not isinstance(now_ms, int) or not isinstance(lease_ms, int) or lease_ms <= 0:
            raise InvalidArgumentError(
                f"lease_ms must be above 0, and now_ms a time in ms: not {lease_ms!r} and {now_ms!r}"
            )
        token: int | None = None

        def generate(state: LeaderLease) -> list[LeaderLease]:
            nonlocal token
            if state.until_ms > now_ms and state.token != self._token:
                token = None
                return []
            continues = state.until_ms > now_ms
            token = state.token if continues else state.token + 1
            until_ms = max(now_ms + lease_ms, state.until_ms) if continues else now_ms + lease_ms
            return [LeaderLease(self.participant, token, until_ms)]

        await self._change(generate, timeout)
        self._token = token
        return token

    async def resign(self, timeout: float | None = None) -> bool:
        """End this participant's leadership; return False if it no longer leads."""

        def generate(state: LeaderLease) -> list[LeaderLease]:
            return [LeaderLease("", state.token, 0)] if state.token == self._token and state.leader else []

        resigned = await self._change(generate, timeout)
        self._token = None
        return resigned
