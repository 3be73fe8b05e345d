"""Observations of clients of simulated servers, and checks that the storage guarantees allow it.

* acknowledged events are readable until they are truncated or deleted;
* each offset has a single event, for all readers at all times; each event exists once, and was written by a client;
* the events of a key are read in the order in which they were written;
* of a transaction all events exist or none, according to its state;
* a request for a segment's end returns at least everything acknowledged before;
* a table entry has the last stored value, and no change is lost; calls on one key are linearizable (`linear`);
* answers about a stream's segments never contradict earlier ones (`segment_answers`);
* everything that a watermark covers precedes its cut, and watermarks only advance.
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
from .segment_answers import SegmentAnswers


class GuaranteeError(AssertionError):
    """The storage violated a guarantee."""


@dataclass(slots=True)
class Written:
    """An event. acknowledged: by the store, outside of transactions. end: where it ends, if known."""

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
    """A writer's time, noted before the server's clock showed `acknowledged`, with its position then."""

    time: int
    acknowledged: int
    position: Cut


@dataclass(slots=True)
class History:
    events: dict[bytes, Written] = field(default_factory=dict)
    places: dict[tuple[str, int], bytes] = field(default_factory=dict)  # of events that were read
    found: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    transactions: dict[int, TxnState] = field(default_factory=dict)  # as known to their clients in the end
    promised: dict[int, TxnState] = field(default_factory=dict)  # by successful calls of commit and abort
    counters: dict[bytes, Counter] = field(default_factory=dict)
    cuts: dict[str, list[Cut]] = field(default_factory=dict)  # by stream: requested truncations
    notes: list[Noted] = field(default_factory=list)
    registers: dict[bytes, Register] = field(default_factory=dict)
    inserted: dict[str, list[bytes]] = field(default_factory=dict)  # by table: keys that are never removed
    retained: dict[str, list[bytes]] = field(default_factory=dict)  # by group: keys in its state, while it exists
    answers: SegmentAnswers = field(default_factory=SegmentAnswers)
    ends: dict[str, int] = field(default_factory=dict)  # of segments: everything before was acknowledged

    def register(self, key: bytes) -> Register:
        """Return the history of a table's key."""
        return self.registers.setdefault(key, Register(f"{key!r}"))

    def written(self, event: Written) -> Written:
        assert event.payload not in self.events, "each is another"
        self.events[event.payload] = event
        return event

    def stored(self, segment: str, end: int) -> None:
        """Note that an event ending there was acknowledged."""
        self.ends[segment] = max(end, self.ends.get(segment, 0))

    def check_end(self, segment: str, end: int, least: int) -> None:
        """Check a reported end. least: `ends` of the segment before the request."""
        if end < least:
            raise GuaranteeError(f"{segment} was reported to end at {end}, but {least} had been acknowledged before")

    # --- events that are read -------------------------------------------------------------------------

    def read(self, segment: str, offset: int, data: bytes) -> int:
        """Check bytes that start with an event; return how many of them are complete events."""
        at = 0
        for payload, size in _events(segment, offset, data):
            self.read_one(segment, offset + at, payload)
            at += size
        return at

    def read_one(self, segment: str, offset: int, payload: bytes) -> Written:
        """Check an event with the position of its header; return it as written."""
        place = segment, offset
        if self.places.setdefault(place, payload) != payload:
            raise GuaranteeError(f"{place} had {self.places[place]!r}, but now {payload!r}")
        if payload not in self.events:
            raise GuaranteeError(f"{place} has {payload!r}, which was never written")
        if self.found.setdefault(payload, place) != place:
            raise GuaranteeError(f"{payload!r} exists twice: at {self.found[payload]} and at {place}")
        return self.events[payload]

    # --- final checks ---------------------------------------------------------------------------------

    def check(self, stream: str, segments: dict[str, tuple[int, int]]) -> None:
        """Check a stream after reading all its segments, by name, from start to end."""
        for (segment, offset), payload in self.places.items():
            if segment not in segments:
                if segment.startswith(f"{stream}/") and not self._is_cut_off(stream, segment):
                    raise GuaranteeError(f"{payload!r} was read in {segment}, which is deleted")
            elif offset >= segments[segment][1]:
                raise GuaranteeError(f"{payload!r} was read at {offset} of {segment}, which ends before")
        for segment, (start, _) in segments.items():
            number = parse_segment_name(segment)[2]
            if start and not any(cut.get(number) == start for cut in self.cuts.get(stream, [])):
                raise GuaranteeError(f"{segment} starts at {start}, which was never requested")
        mine = [event for event in self.events.values() if event.stream == stream]
        for event in mine:
            if event.acknowledged and event.payload not in self.found and not self._is_truncated(event, segments):
                raise GuaranteeError(f"{event} was acknowledged but is missing")
        self._check_order(mine)
        self._check_transactions(mine)

    def _is_truncated(self, event: Written, segments: dict[str, tuple[int, int]]) -> bool:
        if not event.segment:  # the client library doesn't report it
            return bool(self.cuts.get(event.stream))
        if event.segment not in segments:
            return self._is_cut_off(event.stream, event.segment)
        start, _ = segments[event.segment]
        return event.end <= start if event.end >= 0 else start > 0

    def _is_cut_off(self, stream: str, segment: str) -> bool:
        """Return whether a requested cut has only successors of the segment."""
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
        for key, stored in by_key.items():
            stored.sort(key=self._place)
            numbers = [event.number for event in stored]
            if numbers != sorted(numbers):
                raise GuaranteeError(f"the events of {key} are read in the order {numbers}")

    def _place(self, event: Written) -> tuple[int, int]:
        segment, offset = self.found[event.payload]
        return parse_segment_name(segment)[2], offset

    def _check_transactions(self, events: Iterable[Written]) -> None:
        by_transaction: dict[int, list[Written]] = {}
        for event in events:
            if event.transaction >= 0:
                by_transaction.setdefault(event.transaction, []).append(event)
        for transaction, own in by_transaction.items():
            state = self.transactions.get(transaction)
            there = [event for event in own if event.payload in self.found]
            if self.promised.get(transaction, state) is not state:
                raise GuaranteeError(f"transaction {transaction:x} is {state}, not {self.promised[transaction]}")
            if state is not TxnState.COMMITTED and there:
                raise GuaranteeError(f"transaction {transaction:x} is {state}, but {there} can be read")
            if state is TxnState.COMMITTED and len(there) < sum(event.segment != "" for event in own):
                raise GuaranteeError(f"transaction {transaction:x} is committed, but of {own} only {there} can be read")

    def check_watermarks(self, watermarks: list[Watermark], epochs: Epochs) -> None:
        for before, after in pairwise(watermarks):
            if not before.lower < after.lower:
                raise GuaranteeError(f"the watermark of {before.lower} is followed by that of {after.lower}")
            if not epochs.is_at_or_after(after.positions(), before.positions()):
                raise GuaranteeError(f"the cut of {after} precedes that of {before}")
        for note in self.notes:
            mark = next((mark for mark in watermarks if mark.lower >= note.time), None)
            # a watermark with a time in between may precede the note
            if mark is None or mark.lower <= note.acknowledged:
                continue
            if not epochs.is_at_or_after(mark.positions(), note.position):
                raise GuaranteeError(f"{note} follows the watermark {mark}")


@dataclass(slots=True)
class Counter:
    """A table entry that clients increment, conditional on the version that they read."""

    stored: set[int] = field(default_factory=set)  # acknowledged values
    tried: int = 0  # the highest attempted value

    def seen(self, value: int, at_least: int) -> None:
        """Check a value that was read; at_least: the highest acknowledged value when the read started."""
        if not at_least <= value <= self.tried:
            raise GuaranteeError(f"a counter is at {value}; {at_least} was stored, and {self.tried} attempted")

    def acknowledged(self, value: int) -> None:
        if value in self.stored:
            raise GuaranteeError(f"two clients have counted to {value}")
        self.stored.add(value)

    @property
    def highest(self) -> int:
        return max(self.stored, default=0)


def _events(segment: str, offset: int, data: bytes) -> Iterator[tuple[bytes, int]]:
    at = 0
    while at + HEADER_BYTES <= len(data):
        kind, length = HEADER.unpack_from(data, at)
        if kind != 0 or not 0 <= length < 1_000:
            raise GuaranteeError(f"{segment} has an invalid event at offset {offset + at}")
        size = HEADER_BYTES + length
        if at + size > len(data):
            return
        yield data[at + HEADER_BYTES : at + size], size
        at += size
