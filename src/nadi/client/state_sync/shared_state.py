"""Ready shared structures: a map, a set, a counter and a journal that many processes change together.

Each is a StateSynchronizer with a kind of its own. Looking is local, and as fresh as the last `refresh` or
change; every change is made on the newest state and stored before its call returns. Opened with `as_of`
they show the state as of a stream cut, and refuse changes.

`LeaderElection` has one leader among many processes, for the length of a lease, with a token that grows with each.
Time is the caller's: every call takes `now_ms`, so all who take part must agree on it up to less than a
lease. Clocks can fail and processes can stall, so a leader passes its token along with what it does, and
whoever carries that out refuses a token lower than one it has seen: then a former leader does no harm.
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
    """What all shared structures can do. `timeout` is in seconds, for each call; None is the client's."""

    def __init__(self, synchronizer: StateSynchronizer[S, U]) -> None:
        self._synchronizer = synchronizer

    @property
    def name(self) -> str:
        """scope/stream"""
        return self._synchronizer.name

    @property
    def revision(self) -> int:
        """Up to where in the stream the state is known here."""
        return self._synchronizer.revision

    async def refresh(self, timeout: float | None = None) -> None:
        """Apply the changes made by others."""
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
    """Maps of text to values of `value_type`, which msgspec must know."""
    put = msgspec.defstruct(
        "_PutItems", [("items", dict[str, value_type])], bases=(_PutItems,), frozen=True, array_like=True, tag=0
    )
    return StateKind.of_types(dict[str, value_type], put | _RemoveKeys | _Clear, dict, _changed_map)


@checked(without=("get",))
class SharedMap(SharedState[dict[str, Any], _MapUpdate], Generic[V]):
    """A mapping of text to values."""

    def get(self, key: str, default: V | None = None) -> V | None:
        """Return the value as far as this object knows; `default` if the key has none."""
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
        """Return a copy of the contents as far as this object knows."""
        return dict(self._state)

    async def put(self, key: str, value: V, timeout: float | None = None) -> None:
        """Set the key's value unconditionally."""
        await self.put_all({key: value}, timeout)

    async def put_all(self, items: Mapping[str, V], timeout: float | None = None) -> None:
        """Set all of these values in one update."""
        update = _PutItems(dict(items))
        await self._change(lambda _: [update] if update.items else [], timeout)

    async def put_if_absent(self, key: str, value: V, timeout: float | None = None) -> bool:
        """Set the key's value if it has none; return False if it has one."""
        return await self._change(lambda state: [] if key in state else [_PutItems({key: value})], timeout)

    async def replace(self, key: str, expected: V, value: V, timeout: float | None = None) -> bool:
        """Set the key's value if it is `expected`; return False otherwise."""

        def generate(state: dict[str, Any]) -> list[_MapUpdate]:
            return [_PutItems({key: value})] if state.get(key, _MISSING) == expected else []

        return await self._change(generate, timeout)

    async def compute(
        self, key: str, function: Callable[[V | None], V | None], timeout: float | None = None
    ) -> V | None:
        """Set the key's value to what `function` returns for it, None meaning no value; return the new value.

        `function` is called again if somebody else was faster, and must not change its argument.
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
        """Remove a key; return False if there is none."""
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
    """A set of texts, integers or bytes."""

    def __contains__(self, element: object) -> bool:
        return element in self._state

    def __len__(self) -> int:
        return len(self._state)

    def __iter__(self) -> Iterator[E]:
        return iter(list(self._state))

    def as_set(self) -> set[E]:
        """Return a copy of the contents as far as this object knows."""
        return set(self._state)

    async def add(self, element: E, timeout: float | None = None) -> bool:
        """Add an element; return False if the set already has it."""
        return await self.change([element], (), timeout)

    async def discard(self, element: E, timeout: float | None = None) -> bool:
        """Remove an element; return False if the set doesn't have it."""
        return await self.change((), [element], timeout)

    async def change(self, added: Iterable[E], removed: Iterable[E] = (), timeout: float | None = None) -> bool:
        """Add some and remove others in one update; return False if that changes nothing."""
        more, less = list(added), list(removed)
        for element in (*more, *less):
            if not isinstance(element, str | int | bytes):
                raise InvalidArgumentError(f"{element!r} can't be in a shared set: use text, integers or bytes")
        plus, minus = set(more), set(less)

        def generate(state: set[Any]) -> list[_SetChange]:
            update = _SetChange(list(plus - state - minus), list(minus & state))
            return [update] if update.added or update.removed else []

        return await self._change(generate, timeout)


# --- counter -------------------------------------------------------------------------------------


def counter_kind() -> StateKind[int, int]:
    return StateKind.of_types(int, int, int, int.__add__)


@checked()
class SharedCounter(SharedState[int, int]):
    """An integer of 64 bits."""

    @property
    def value(self) -> int:
        """The value as of this object's last `refresh` or change."""
        return self._state

    async def add(self, amount: int = 1, timeout: float | None = None) -> int:
        """Add to the counter and return the new value: nobody else who adds the same amount gets the same."""
        if not isinstance(amount, int):
            raise InvalidArgumentError(f"a counter goes on by an integer, not {amount!r}")
        found = 0

        def generate(state: int) -> list[int]:
            nonlocal found
            found = state + amount
            if not -(1 << 63) <= found < 1 << 63:
                raise InvalidArgumentError(f"{self.name} would become {found}, which 64 bits don't hold")
            return [amount]

        await self._change(generate, timeout)
        return found

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
    first: int = 0  # index of the first entry that is kept
    kept: list[bytes] = []


class _JournalAppend(msgspec.Struct, frozen=True, array_like=True, tag=0):
    entries: list[bytes]


class _Trim(msgspec.Struct, frozen=True, array_like=True, tag=1):
    before: int


def _changed_journal(state: _Entries, update: _JournalAppend | _Trim) -> _Entries:
    if isinstance(update, _JournalAppend):
        state.kept += update.entries
    elif update.before > state.first:
        del state.kept[: update.before - state.first]
        state.first = update.before
    return state


def journal_kind() -> StateKind[_Entries, _JournalAppend | _Trim]:
    return StateKind.of_types(_Entries, _JournalAppend | _Trim, _Entries, _changed_journal)


@checked()
class Journal(SharedState[_Entries, "_JournalAppend | _Trim"]):
    """Entries in one order for everybody, each with an index that never changes."""

    @property
    def first_index(self) -> int:
        """The index of the first entry that is kept."""
        return self._state.first

    @property
    def next_index(self) -> int:
        """The index of the entry that is appended next, as far as this object knows."""
        return self._state.first + len(self._state.kept)

    def __len__(self) -> int:
        return len(self._state.kept)

    def entries(self, start: int | None = None) -> list[bytes]:
        """Return the entries from index `start` on that are kept, as far as this object knows."""
        return self._state.kept[max((start or 0) - self._state.first, 0) :]

    async def append(self, entry: bytes, timeout: float | None = None) -> int:
        """Append an entry and return its index."""
        return await self.append_all([entry], timeout)

    async def append_all(self, entries: Sequence[bytes], timeout: float | None = None) -> int:
        """Append entries one after another, all or none; return the index of the first."""
        index = 0

        def generate(state: _Entries) -> list[_JournalAppend | _Trim]:
            nonlocal index
            index = state.first + len(state.kept)
            return [_JournalAppend(list(entries))] if entries else []

        await self._change(generate, timeout)
        return index

    async def append_at(self, index: int, entry: bytes, timeout: float | None = None) -> bool:
        """Append an entry at `index`; return False if somebody else was faster, or it is not the next index."""

        def generate(state: _Entries) -> list[_JournalAppend | _Trim]:
            return [_JournalAppend([entry])] if index == state.first + len(state.kept) else []

        return await self._change(generate, timeout)

    async def trim(self, before: int, timeout: float | None = None) -> None:
        """Drop the entries before index `before`."""

        def generate(state: _Entries) -> list[_JournalAppend | _Trim]:
            last = min(before, state.first + len(state.kept))
            return [_Trim(last)] if last > state.first else []

        await self._change(generate, timeout)


class LeaderLease(msgspec.Struct, frozen=True, array_like=True):
    """Who leads, until when, and with which token; before the first leader the token is 0."""

    leader: str = ""
    token: int = 0
    until_ms: int = 0


def election_kind() -> StateKind[LeaderLease, LeaderLease]:
    return StateKind.of_types(LeaderLease, LeaderLease, LeaderLease, lambda _, update: update)


@checked()
class LeaderElection(SharedState[LeaderLease, LeaderLease]):
    """One who takes part, by the name of `participant`."""

    def __init__(self, synchronizer: StateSynchronizer[LeaderLease, LeaderLease], participant: str) -> None:
        super().__init__(synchronizer)
        self.participant = participant
        self._token: int | None = None  # under which this object leads or has led

    def token(self, now_ms: int) -> int | None:
        """Return the fencing token if this participant leads at that time, as far as this object knows."""
        leads = self._token == self._state.token and self._state.until_ms > now_ms
        return self._token if leads else None

    def leader(self, now_ms: int) -> LeaderLease | None:
        """Return the lease of the leader at that time, as far as this object knows."""
        return self._state if self._state.until_ms > now_ms else None

    async def campaign(self, now_ms: int, lease_ms: int, timeout: float | None = None) -> int | None:
        """Lead until `now_ms + lease_ms` if nobody else does, or keep leading; return the token, or None.

        The leader calls it again well before the lease ends. A name counts only together with the token that
        this object received: another process of the same name waits like everybody else.
        """
        if not isinstance(now_ms, int) or not isinstance(lease_ms, int) or lease_ms <= 0:
            raise InvalidArgumentError(
                f"a lease is a number of ms above 0, from a time in ms: not {lease_ms}, {now_ms!r}"
            )
        token: int | None = None

        def generate(state: LeaderLease) -> list[LeaderLease]:
            nonlocal token
            if state.until_ms > now_ms and state.token != self._token:
                token = None
                return []
            goes_on = state.until_ms > now_ms
            token = state.token if goes_on else state.token + 1
            until_ms = max(now_ms + lease_ms, state.until_ms) if goes_on else now_ms + lease_ms
            return [LeaderLease(self.participant, token, until_ms)]

        await self._change(generate, timeout)
        self._token = token
        return token

    async def resign(self, timeout: float | None = None) -> bool:
        """Let somebody else lead at once; return False if this participant no longer leads."""

        def generate(state: LeaderLease) -> list[LeaderLease]:
            return [LeaderLease("", state.token, 0)] if state.token == self._token and state.leader else []

        resigned = await self._change(generate, timeout)
        self._token = None
        return resigned
