"""What clients of a simulated server saw, and whether a storage that keeps its word could have shown it to them.

* what was acknowledged is read, and goes on being read, until it is truncated or deleted;
* at one offset there is one event, whoever reads it and whenever; each event is there once, and somebody wrote it;
* the events of a key are read in the order in which they were written;
* of a transaction all events are there or none, as its state says;
* who asks for a segment's end is told of all that had been acknowledged before;
* an entry of a table has the last value that was stored, and no change of it is lost; calls on one key are as if they
  had come one after another (`linear`);
* of a stream's segments nothing is taken back, whoever is asked (`told`);
* what a watermark says lies before its cut, and watermarks only go forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from nadi.controller.state.history import Cut
from nadi.controller.state.history import EpochHistory as Epochs
from nadi.controller.state.records import TxnState
from nadi.model.framing import HEADER, HEADER_BYTES
from nadi.model.watermark import Watermark
from nadi.naming import parse_segment_name, segment_epoch

from .linear import Register
from .told import SegmentsTold


class BrokenWordError(AssertionError):
    """The storage did what it never may."""


@dataclass(slots=True)
class Written:
    """An event. acknowledged: by the store, if it is of no transaction. end: where it ends, if that is known."""

    stream: str
    key: str
    number: int
    transaction: int = -1
    acknowledged: bool = False
    segment: str = ""
    end: int = -1

    @property
    def payload(self) -> bytes:
        return f"{self.stream} {self.key} {self.number} {self.transaction}".encode()


@dataclass(slots=True)
class Noted:
    """A writer's time, noted before the server's clock had shown `acknowledged`, with its position then."""

    time: int
    acknowledged: int
    position: Cut


@dataclass(slots=True)
class History:
    events: dict[bytes, Written] = field(default_factory=dict)
    places: dict[tuple[str, int], bytes] = field(default_factory=dict)  # of what was read
    found: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    transactions: dict[int, TxnState] = field(default_factory=dict)  # as their clients know in the end
    promised: dict[int, TxnState] = field(default_factory=dict)  # by calls to commit and to abort that succeeded
    counters: dict[bytes, Counter] = field(default_factory=dict)
    cuts: dict[str, list[Cut]] = field(default_factory=dict)  # by stream: those that truncations were asked for at
    notes: list[Noted] = field(default_factory=list)
    registers: dict[bytes, Register] = field(default_factory=dict)
    inserted: dict[str, list[bytes]] = field(default_factory=dict)  # by table: keys that nobody removes
    kept: dict[str, list[bytes]] = field(default_factory=dict)  # by group: keys in its state, while it lives
    told: SegmentsTold = field(default_factory=SegmentsTold)
    ends: dict[str, int] = field(default_factory=dict)  # of segments: to there all was acknowledged

    def register(self, key: bytes) -> Register:
        """What is known of a table's key."""
        return self.registers.setdefault(key, Register(f"{key!r}"))

    def written(self, event: Written) -> Written:
        assert event.payload not in self.events, "each is another"
        self.events[event.payload] = event
        return event

    def stored(self, segment: str, end: int) -> None:
        """Acknowledged, as ending there."""
        self.ends[segment] = max(end, self.ends.get(segment, 0))

    def told_end(self, segment: str, end: int, least: int) -> None:
        """least: what `ends` said before somebody asked."""
        if end < least:
            raise BrokenWordError(f"{segment} was said to end at {end}, and {least} had been acknowledged before")

    # --- what is read ---------------------------------------------------------------------------------

    def read(self, segment: str, offset: int, data: bytes) -> int:
        """Bytes from where an event begins; gives how many of them are whole events."""
        at = 0
        for payload, size in _events(segment, offset, data):
            self.read_one(segment, offset + at, payload)
            at += size
        return at

    def read_one(self, segment: str, offset: int, payload: bytes) -> Written:
        """An event, and where its header begins; gives who wrote it."""
        place = segment, offset
        if self.places.setdefault(place, payload) != payload:
            raise BrokenWordError(f"at {place} there was {self.places[place]!r}, and is {payload!r}")
        if payload not in self.events:
            raise BrokenWordError(f"at {place} there is {payload!r}, which nobody wrote")
        if self.found.setdefault(payload, place) != place:
            raise BrokenWordError(f"{payload!r} is at {self.found[payload]} and at {place}")
        return self.events[payload]

    # --- the end --------------------------------------------------------------------------------------

    def check(self, stream: str, segments: dict[str, tuple[int, int]]) -> None:
        """After all of the stream's segments, by name, were read from their start to their end."""
        for (segment, offset), payload in self.places.items():
            if segment not in segments:
                if segment.startswith(f"{stream}/") and not self._is_cut_off(stream, segment):
                    raise BrokenWordError(f"{payload!r} was read in {segment}, which is gone")
            elif offset >= segments[segment][1]:
                raise BrokenWordError(f"{payload!r} was read at {offset} of {segment}, which ends before it")
        for segment, (start, _) in segments.items():
            number = parse_segment_name(segment)[2]
            if start and not any(cut.get(number) == start for cut in self.cuts.get(stream, [])):
                raise BrokenWordError(f"{segment} begins at {start}, which nobody asked for")
        mine = [event for event in self.events.values() if event.stream == stream]
        for event in mine:
            if event.acknowledged and event.payload not in self.found and not self._is_truncated(event, segments):
                raise BrokenWordError(f"{event} was acknowledged, and is not there")
        self._check_order(mine)
        self._check_transactions(mine)

    def _is_truncated(self, event: Written, segments: dict[str, tuple[int, int]]) -> bool:
        if not event.segment:  # the client library doesn't say where it is
            return bool(self.cuts.get(event.stream))
        if event.segment not in segments:
            return self._is_cut_off(event.stream, event.segment)
        start, _ = segments[event.segment]
        return event.end <= start if event.end >= 0 else start > 0

    def _is_cut_off(self, stream: str, segment: str) -> bool:
        """Whether a cut was asked for that has only what follows it."""
        number = parse_segment_name(segment)[2]
        return any(
            number not in cut and segment_epoch(number) <= max(map(segment_epoch, cut))
            for cut in self.cuts.get(stream, [])
        )

    def _check_order(self, events: Iterable[Written]) -> None:
        by_key: dict[str, list[Written]] = {}
        for event in events:
            if event.payload in self.found:
                by_key.setdefault(event.key, []).append(event)
        for key, found in by_key.items():
            found.sort(key=self._place)
            numbers = [event.number for event in found]
            if numbers != sorted(numbers):
                raise BrokenWordError(f"the events of {key} are read in the order {numbers}")

    def _place(self, event: Written) -> tuple[int, int]:
        segment, offset = self.found[event.payload]
        return parse_segment_name(segment)[2], offset

    def _check_transactions(self, events: Iterable[Written]) -> None:
        by_transaction: dict[int, list[Written]] = {}
        for event in events:
            if event.transaction >= 0:
                by_transaction.setdefault(event.transaction, []).append(event)
        for transaction, its in by_transaction.items():
            state = self.transactions.get(transaction)
            there = [event for event in its if event.payload in self.found]
            if self.promised.get(transaction, state) is not state:
                raise BrokenWordError(f"transaction {transaction:x} is {state}, not {self.promised[transaction]}")
            if state is not TxnState.COMMITTED and there:
                raise BrokenWordError(f"transaction {transaction:x} is {state}, and {there} can be read")
            if state is TxnState.COMMITTED and len(there) < sum(event.segment != "" for event in its):
                raise BrokenWordError(f"transaction {transaction:x} is committed, and of {its} there is {there}")

    def check_watermarks(self, watermarks: list[Watermark], epochs: Epochs) -> None:
        for before, after in pairwise(watermarks):
            if not before.lower < after.lower:
                raise BrokenWordError(f"the watermark of {before.lower} is followed by that of {after.lower}")
            if not epochs.is_at_or_after(after.positions(), before.positions()):
                raise BrokenWordError(f"the cut of {after} lies before that of {before}")
        for note in self.notes:
            told = next((mark for mark in watermarks if mark.lower >= note.time), None)
            # one of a time between may be of before the note came
            if told is None or told.lower <= note.acknowledged:
                continue
            if not epochs.is_at_or_after(told.positions(), note.position):
                raise BrokenWordError(f"{note} lies behind the watermark {told}")


@dataclass(slots=True)
class Counter:
    """An entry of a table that clients count up, each on the version that it read."""

    stored: set[int] = field(default_factory=set)  # values that were acknowledged
    tried: int = 0  # the highest that anybody tried to store

    def seen(self, value: int, at_least: int) -> None:
        """A read gave it; at_least: the highest that had been acknowledged when the read began."""
        if not at_least <= value <= self.tried:
            raise BrokenWordError(f"a counter is at {value}; {at_least} was stored, and {self.tried} tried")

    def acknowledged(self, value: int) -> None:
        if value in self.stored:
            raise BrokenWordError(f"two have counted to {value}")
        self.stored.add(value)

    @property
    def highest(self) -> int:
        return max(self.stored, default=0)


def _events(segment: str, offset: int, data: bytes) -> Iterator[tuple[bytes, int]]:
    at = 0
    while at + HEADER_BYTES <= len(data):
        kind, length = HEADER.unpack_from(data, at)
        if kind != 0 or not 0 <= length < 1_000:
            raise BrokenWordError(f"no event begins at {offset + at} of {segment}")
        size = HEADER_BYTES + length
        if at + size > len(data):
            return
        yield data[at + HEADER_BYTES : at + size], size
        at += size
