"""Linearizability check of several clients' calls on one key of a table: in some order, each call takes effect at a
moment between its start and its end.

All changes are conditional, and versions increase with each. So versions give the order of the states that were seen,
and each call determines the state in which it took effect: a put made it, a read saw it, a failed put met another than
it expected. What remains is real time: a call that ended before another started can't come later in that order, which
one walk over starts and ends checks. A call without a reply may have taken effect or not; it did if its value was seen.
If its value was never seen, it can only have come after all that were, since no change could build on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nadi.wire.fields import NOT_EXISTS

ABSENT = NOT_EXISTS
Place = tuple[int, int]  # the number of a state, and 0 for the call that made it, 1 for calls that met it


class NotLinearError(AssertionError):
    """No order explains the calls."""


@dataclass(slots=True, eq=False)
class Call:
    """A client's call. `end` it with the result; without that the outcome is unknown."""

    kind: str  # get, put or remove
    expected: int  # the version required by a put or remove, or ABSENT
    value: bytes
    began: float
    ended: float = math.inf
    is_refused: bool = False
    version: int | None = None  # made by a put or seen by a get, or ABSENT

    def end(self, now: float, version: int | None = None, value: bytes | None = None) -> None:
        self.ended, self.version = now, version
        self.value = self.value if value is None else value

    def refuse(self, now: float) -> None:
        self.ended, self.is_refused = now, True

    @property
    def is_known(self) -> bool:
        return self.ended < math.inf


@dataclass(slots=True)
class Register:
    """The calls on one key. All values that are put differ."""

    key: str
    calls: list[Call] = field(default_factory=list)

    def begin(self, kind: str, now: float, expected: int = ABSENT, value: bytes = b"") -> Call:
        call = Call(kind, expected, value, now)
        self.calls.append(call)
        return call

    def check(self) -> int:
        """Return the number of states; NotLinearError if no order explains the calls."""
        order = _Order(self)
        order.walk()
        return len(order.states)


@dataclass(slots=True)
class _State:
    version: int
    made_by: Call | None = None


class _Order:
    """The states of a register in order, and the place of each call among them."""

    def __init__(self, register: Register) -> None:
        self._key = register.key
        self._calls = register.calls
        self._puts = {call.value: call for call in self._calls if call.kind == "put"}
        self._removes = self._of_removes()
        self.states = list(self._in_order(self._versions()))
        self._at = {state.version: place for place, state in enumerate(self.states) if state.version != ABSENT}
        self._makes = {id(state.made_by): place for place, state in enumerate(self.states) if state.made_by}
        self._last = self.states[-1].version

    def walk(self) -> None:
        """Walk through time: a call may not come earlier than any that ended before it started."""
        latest: Place = (0, 0)
        events = [(call.began, 0, at) for at, call in enumerate(self._calls)]
        events += [(call.ended, 1, at) for at, call in enumerate(self._calls) if call.is_known]
        places: dict[int, Place] = {}
        for _, is_end, at in sorted(events):
            call = self._calls[at]
            if is_end:
                latest = max(latest, places[at])
            elif (place := self._place(call, latest)) is not None:
                if place < latest:
                    raise self._wrong(f"{call} took effect before calls that had ended when it started: {latest}")
                places[at] = place

    # --- states -----------------------------------------------------------------------------------------

    def _versions(self) -> dict[int, Call]:
        """Map each version to the call that put it."""
        makers: dict[int, Call] = {}
        for call in self._calls:
            if call.version is None or call.version == ABSENT:
                continue
            maker = self._puts.get(call.value)
            if maker is None:
                raise self._wrong(f"{call} saw a value that was never put")
            if maker.is_refused or maker.version not in (None, call.version):
                raise self._wrong(f"{call} saw the version {call.version} of {maker}")
            if makers.setdefault(call.version, maker) is not maker:
                raise self._wrong(f"{maker} and {makers[call.version]} have the same version")
        if len({id(maker) for maker in makers.values()}) < len(makers):
            raise self._wrong(f"a value was put twice: {makers}")
        return makers

    def _of_removes(self) -> dict[int, Call]:
        """Map each version that was, or may have been, removed to the call that removed it."""
        removes: dict[int, Call] = {}
        for call in self._calls:
            if call.kind != "remove" or call.is_refused:
                continue
            other = removes.get(call.expected)
            if other is not None and other.is_known and call.is_known:
                raise self._wrong(f"{other} and {call} removed the same version")
            if other is None or (call.is_known and not other.is_known):
                removes[call.expected] = call  # the first of several unknown ones allows most
        return removes

    def _in_order(self, versions: dict[int, Call]) -> Iterator[_State]:
        yield _State(ABSENT)
        before = ABSENT
        for version in sorted(versions):
            maker, remove = versions[version], self._removes.get(before)
            if maker.expected == ABSENT and before != ABSENT:
                if remove is None:
                    raise self._wrong(f"{maker} put where {before} was, expecting no entry")
                yield _State(ABSENT, remove)
            elif maker.expected != before:
                raise self._wrong(f"{maker} put {version} over {maker.expected}, so {before} is lost")
            elif remove is not None and remove.is_known:
                raise self._wrong(f"{maker} put over a version that {remove} had removed")
            yield _State(version, maker)
            before = version
        if before in self._removes and self._removes[before].is_known:
            yield _State(ABSENT, self._removes[before])

    # --- places -----------------------------------------------------------------------------------------

    def _place(self, call: Call, latest: Place) -> Place | None:
        """Return where the call took effect; None if it may not have."""
        if id(call) in self._makes:
            return self._makes[id(call)], 0
        if not call.is_known:
            return None
        if call.is_refused:
            return self._first(latest, call, lambda state: state.version != call.expected), 1
        if call.kind == "get" and call.version != ABSENT:
            assert call.version is not None
            return self._at[call.version], 1
        if call.kind == "get":
            return self._first(latest, call, lambda state: state.version == ABSENT), 1
        raise self._wrong(f"{call} made nothing")

    def _first(self, latest: Place, call: Call, fits: Callable[[_State], bool]) -> int:
        """Return the first state, from the latest on, that the call may have met."""
        for place in range(latest[0], len(self.states)):
            if fits(self.states[place]):
                return place
        end = len(self.states)  # after all certain states
        if latest[0] == end and call.is_refused and call.expected != ABSENT:
            return end  # known versions don't recur
        if any(self._explains(other, call) for other in self._calls):
            return end
        raise self._wrong(
            f"{call} met a state that did not exist: from {latest} on there was {self.states[latest[0] :]}"
        )

    def _explains(self, other: Call, call: Call) -> bool:
        """Return whether the other call, whose outcome was never seen, may have made the state that the call met."""
        if other.is_known or id(other) in self._makes or other.began > call.ended:
            return False
        if call.kind == "get":
            return other.kind == "remove" and other.expected == self._last
        if other.kind == "put":
            return other.expected in (self._last, ABSENT)
        return other.expected == self._last == call.expected

    def _wrong(self, why: str) -> NotLinearError:
        return NotLinearError(f"{self._key}: {why}")
