"""nadi's own commands, with codes from 10,001: no Pravega client sends or receives them."""

from __future__ import annotations

from nadi.wire.commands.pravega import Command, Hello, OfSegment, WithToken
from nadi.wire.fields import I64, Blob, Bool, Entries, Str, Uuid


class LocateMoment(OfSegment, frozen=True):
    """Where a stream segment stood at a time of a clock; see `segmentstore.state.time_index`. That of ARRIVAL is in ms
    since 1970."""

    code = 10_001
    at: I64
    clock: I64
    token: Str


class MomentLocated(OfSegment, frozen=True):
    """No event before `offset` is of that time or later; of an EARLIEST clock, none from there on is of an earlier one.
    is_sealed: the segment was sealed before it, so that all its events lie before `offset`, now and ever."""

    code = 10_002
    offset: I64
    is_sealed: Bool


class UpdateTableToFreeRoom(WithToken, frozen=True):
    """As UpdateTableEntries, answered alike, of whoever truncates or deletes: taken on a full disk too, for a while.
    make_table: make the table if it isn't there."""

    code = 10_003
    entries: Entries
    make_table: Bool


class Scrub(OfSegment, frozen=True):
    """How far the reading of everything stored is; `start`: begin it now. `segment` is `naming.SCRUB_SEGMENT`."""

    code = 10_004
    start: Bool
    token: Str


class ScrubReported(OfSegment, frozen=True):
    """report: a `model.scrub.ScrubReport` as JSON."""

    code = 10_005
    report: Blob


class ReportKeys(Command, frozen=True):
    """A writer's keys, over its append session and without a reply: where some of the keys of its last `events` events
    are in the key space. positions: big-endian doubles in [0, 1), at most `limits.LOAD_REPORT_POSITIONS`.

    Only for a peer that `knows` it.
    """

    code = 10_006
    writer_id: Uuid
    events: I64
    positions: Blob


class GetSegmentLoads(WithToken, frozen=True):
    """The loads that a store measures, a page of them: of segments whose names come after `after`. `segment` is
    `naming.LOAD_SEGMENT`."""

    code = 10_007
    after: Str


class SegmentLoads(OfSegment, frozen=True):
    """loads: as in `wire.loads`, in the order of their segments. is_last: there are no more."""

    code = 10_008
    loads: Blob
    is_last: Bool


class LocateChunks(OfSegment, frozen=True):
    """Which chunks have a stream segment's bytes from `start` to `end`: asked by clients that can read tier 2
    themselves, of a peer that `knows` it."""

    code = 10_009
    start: I64
    end: I64
    token: Str


class ChunksLocated(OfSegment, frozen=True):
    """store: the URL of the chunk store, without credentials. mark: what that store alone says of itself. parts:
    the first of the chunks, as in `wire.chunks`. is_last: there are no more. No store and no mark without parts."""

    code = 10_010
    store: Str
    mark: Str
    parts: Blob
    is_last: Bool


class ListMoments(OfSegment, frozen=True):
    """The entries of a clock in a stream segment's time index for the bytes from `start` to `end`: from the first one
    that lies behind `start` to the first at `end` or behind it. Asked of a peer that `knows`
    it."""

    code = 10_011
    start: I64
    end: I64
    token: Str
    clock: I64 = 0  # ARRIVAL, and all that an older peer asks for


class MomentsListed(OfSegment, frozen=True):
    """moments: the first of the entries, as in `wire.moments`; a moment is 0 if it isn't known when the bytes before it
    came. is_last: there are no more. appended_ms: when the last bytes came, or 0. start: where the segment begins
    now, behind which alone there are entries."""

    code = 10_012
    moments: Blob
    is_last: Bool
    appended_ms: I64
    start: I64


class ListEventSizes(OfSegment, frozen=True):
    """How long a stream segment's events from `start` to `end` are, the first `most` of them at most; an event begins
    at `start`. checked: up to where the bytes of that event, a large one, were looked at before; else `start`. Asked of
    a peer that `knows` it."""

    code = 10_013
    start: I64
    checked: I64
    end: I64
    most: I64
    token: Str


class EventSizesListed(OfSegment, frozen=True):
    """sizes: of the first of the events, as in `wire.event_sizes`. reached: where these end. checked: up to where the
    bytes were looked at; behind `reached` if the next event is a large one. Neither moves where only a read can say
    more: at damage, at what isn't an event, at the segment's end, and where the range ends within an event."""

    code = 10_014
    sizes: Blob
    reached: I64
    checked: I64


class IndexTimes(OfSegment, frozen=True):
    """Add times of events to a stream segment's time index: of stretches that begin at `start`, as in `wire.moments`;
    without any, only ask. clock: a LATEST one."""

    code = 10_015
    clock: I64
    start: I64
    stretches: Blob
    token: Str


class TimesIndexed(OfSegment, frozen=True):
    """until: up to where the segment's events are in the index now. If `start` was another place, nothing was added."""

    code = 10_016
    until: I64


# the version from which on a peer knows a command; others end the connection when one comes
_KNOWN_SINCE = {ReportKeys: 10_001, LocateChunks: 10_002, ListMoments: 10_003, ListEventSizes: 10_004}
OWN_HELLO = Hello(max(_KNOWN_SINCE.values()), 5)  # said by nadi's clients, and to them by nadi's servers


def knows(hello: Hello, kind: type[Command]) -> bool:
    """Return whether the peer that said this knows a command of nadi's.

    Any server that speaks versions 5 to 17 accepts a client that speaks more; official ones answer with their own
    versions, and nadi's answer official clients with those that they know.
    """
    return hello.high_version >= _KNOWN_SINCE[kind]
