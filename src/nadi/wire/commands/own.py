"""nadi's extensions of the wire protocol, with codes from 10,001; Pravega clients neither send nor receive them."""

from __future__ import annotations

from nadi.wire.commands.pravega import Command, Hello, OfSegment, WithToken
from nadi.wire.fields import I64, Blob, Bool, Entries, Str, Uuid


class LocateMoment(OfSegment, frozen=True):
    """Request for a stream segment's offset at a time of a clock (`segmentstore.state.time_index`); ARRIVAL is in ms
    since 1970."""

    code = 10_001
    at: I64
    clock: I64
    token: Str


class MomentLocated(OfSegment, frozen=True):
    """The offset before which all events are earlier than the time; for an EARLIEST clock, from which on no event is.

    is_sealed: the segment was sealed before that time, so all its events will always be before `offset`.
    """

    code = 10_002
    offset: I64
    is_sealed: Bool


class UpdateTableToFreeSpace(WithToken, frozen=True):
    """UpdateTableEntries for truncations and deletions: accepted for a while on a full disk, too.

    make_table: create the table if it doesn't exist.
    """

    code = 10_003
    entries: Entries
    make_table: Bool


class Scrub(OfSegment, frozen=True):
    """Request for the scrub's progress; start: start a scrub now. `segment` is `naming.SCRUB_SEGMENT`."""

    code = 10_004
    start: Bool
    token: Str


class ScrubReported(OfSegment, frozen=True):
    """The scrub's progress. report: a `model.scrub.ScrubReport` as JSON."""

    code = 10_005
    report: Blob


class ReportKeys(Command, frozen=True):
    """A writer's key report on its append session, without a reply: a sample of the keys of its last `events` events.

    positions: big-endian doubles in [0, 1), at most `limits.LOAD_REPORT_POSITIONS`. Only for peers that know it.
    """

    code = 10_006
    writer_id: Uuid
    events: I64
    positions: Blob


class GetSegmentLoads(WithToken, frozen=True):
    """Request for a page of a store's load measurements, of segments with names after `after`.

    `segment` is `naming.LOAD_SEGMENT`. elastic: omit segments that are known not to scale.
    """

    code = 10_007
    after: Str
    elastic: Bool = False


class SegmentLoads(OfSegment, frozen=True):
    """A page of load measurements. loads: as in `wire.load_reports`, by segment. is_last: it is the last page.
    is_complete: no container has more active segments than it measures."""

    code = 10_008
    loads: Blob
    is_last: Bool
    is_complete: Bool = True


class LocateChunks(OfSegment, frozen=True):
    """Request for the chunks with a stream segment's bytes from `start` to `end`, by clients that read tier 2 directly.

    Only for peers that know it.
    """

    code = 10_009
    start: I64
    end: I64
    token: Str


class ChunksLocated(OfSegment, frozen=True):
    """The first of the requested chunks.

    store: the URL of the chunk store, without credentials. mark: that store's identity. parts: as in `wire.chunks`.
    is_last: no further chunks follow. store and mark are empty without parts.
    """

    code = 10_010
    store: Str
    mark: Str
    parts: Blob
    is_last: Bool


class ListMoments(OfSegment, frozen=True):
    """Request for a clock's entries in a stream segment's time index for the bytes from `start` to `end`.

    These are the first entry after `start` to the first at or after `end`. Only for peers that know it.
    """

    code = 10_011
    start: I64
    end: I64
    token: Str
    clock: I64 = 0  # ARRIVAL; older peers request no other clock


class MomentsListed(OfSegment, frozen=True):
    """The first of the requested entries.

    moments: as in `wire.time_index`; a time is 0 if it is unknown. is_last: no further entries follow. appended_ms:
    time of the last append, or 0. start: the segment's start; all entries are after it.
    """

    code = 10_012
    moments: Blob
    is_last: Bool
    appended_ms: I64
    start: I64


class ListEventSizes(OfSegment, frozen=True):
    """Request for the sizes of a stream segment's events from `start`, an event boundary, to `end`, at most `most`.

    checked: the offset up to which an earlier request checked the first event, if it is large; else `start`. Only for
    peers that know it.
    """

    code = 10_013
    start: I64
    checked: I64
    end: I64
    most: I64
    token: Str


class EventSizesListed(OfSegment, frozen=True):
    """The sizes of the first of the requested events.

    sizes: as in `wire.event_sizes`. reached: the end of these events. checked: the end of the checked bytes, after
    `reached` if the next event is large. Neither advances where a read is necessary: at damage, at bytes that
    aren't events, at the segment's end, and if the range ends within an event.
    """

    code = 10_014
    sizes: Blob
    reached: I64
    checked: I64


class IndexTimes(OfSegment, frozen=True):
    """Request to add event times to a stream segment's time index.

    stretches: consecutive ranges from `start` on, as in `wire.time_index`; empty to query only. clock: a LATEST clock.
    """

    code = 10_015
    clock: I64
    start: I64
    stretches: Blob
    token: Str


class TimesIndexed(OfSegment, frozen=True):
    """The new end of the index. until: the end of the indexed events; if it isn't `start`, nothing was added."""

    code = 10_016
    until: I64


# the version that introduced each command; older peers close the connection on receiving one
_KNOWN_SINCE = {ReportKeys: 10_001, LocateChunks: 10_002, ListMoments: 10_003, ListEventSizes: 10_004}
OWN_HELLO = Hello(max(_KNOWN_SINCE.values()), 5)  # sent between nadi's clients and servers


def knows(hello: Hello, kind: type[Command]) -> bool:
    """Return whether the peer that sent this Hello knows a command of nadi's.

    Any server with versions 5 to 17 accepts a client with later ones; official servers answer with their versions, and
    nadi answers official clients with versions that they know.
    """
    return hello.high_version >= _KNOWN_SINCE[kind]
