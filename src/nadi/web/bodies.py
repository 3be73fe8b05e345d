"""Queries, request bodies and response bodies of the page's endpoints, in addition to `controller.rest.bodies`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from nadi.controller.rest.bodies import RequestBody, ResponseBody
from nadi.limits import PAGE_BATCH_EVENTS

_NAME_SCHEMA: dict[str, Any] = {"minLength": 1, "maxLength": 255}
Moment = Annotated[int | None, Meta(description="Milliseconds since 1970; null if unknown.")]
Place = Annotated[
    str,
    Meta(
        min_length=1,
        description="head, tail, a time (ISO 8601 with a zone; `event:` and a time or date refers to event time), the "
        "text of a cut, or a bookmark's name.",
    ),
]
NewName = Annotated[str, Meta(description="Letters, digits, '.' and '-'.", extra_json_schema=_NAME_SCHEMA)]
Labels = Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=128)]
KeyRange = Annotated[list[Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=2, max_length=2)]


# --- queries ---------------------------------------------------------------------------------------------

_Place = Annotated[str, Meta(min_length=1, max_length=4_096)] | UnsetType
_Ms = Annotated[int, Meta(ge=-(1 << 52), lt=1 << 52)] | UnsetType
ABOUT = {  # parameters, optionally qualified by a query's name
    "after": "Page to return: `next` of the previous page.",
    "at": "Position, as in the body of a bookmark.",
    "by": "Clock of times: arrival, or the events' own time. Defaults to event time if the stream defines it.",
    "CountBy.by": "Field to count by, or _arrival_time for the time of arrival.",
    "CountBy.limit": "Number of the most frequent values.",
    "end": "End of the range. Defaults to the current tail.",
    "eventBytes": "Maximum bytes of each event. Defaults to all.",
    "from": "Milliseconds since 1970: omit earlier events.",
    "interval": "Interval of counts by time or by number, in seconds.",
    "key": "Search only segments that may contain this routing key; may be repeated.",
    "limit": "Hits per page; fewer, with a `next`, if events exceed 16 MiB.",
    "most": "Maximum number of events. Defaults to 1.",
    "order": "Order of hits.",
    "pauses": "skip: jump over times without events.",
    "query": "Query; see docs/search.md.",
    "since": "Start of the range, as in the body of a bookmark.",
    "slice": "Named slice, instead of start and end.",
    "speed": "Playback speed, up to a week per second. Defaults to 1.",
    "start": "Start of the range, a position as in `cut`. Defaults to the head.",
    "stream": "Only those of this stream.",
    "TailFrom.start": "Start, a position as in `cut`. Defaults to the tail.",
    "to": "Milliseconds since 1970: omit events from this time on.",
    "until": "End of the range, as in the body of a bookmark.",
    "waitFor": "Wait until all events before this position are indexed.",
    "which": "first, or last for the events at the end of the range.",
}


class ByTimes(Struct, frozen=True, kw_only=True):
    by: Literal["arrival", "event-time"] | UnsetType = UNSET


class StreamQuery(ByTimes, frozen=True, kw_only=True):
    stream: str | UnsetType = UNSET


class CutAt(ByTimes, frozen=True, kw_only=True):
    at: Annotated[str, Meta(min_length=1, max_length=4_096)]


class TailFrom(Struct, frozen=True, kw_only=True):
    start: _Place = UNSET


class EventRange(ByTimes, frozen=True, kw_only=True):
    """A named slice, or a range between two positions."""

    slice: _Place = UNSET
    start: _Place = UNSET
    end: _Place = UNSET
    from_ms: _Ms = field(name="from", default=UNSET)
    to_ms: _Ms = field(name="to", default=UNSET)


class FirstEvents(EventRange, frozen=True, kw_only=True):
    most: Annotated[int, Meta(ge=1, le=PAGE_BATCH_EVENTS)] = 1
    which: Literal["first", "last"] = "first"


class PlaybackRange(EventRange, frozen=True, kw_only=True):
    speed: Annotated[float, Meta(ge=0.01, le=604_800.0)] = 1.0
    pauses: Literal["keep", "skip"] = "keep"


class SearchParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    query: str = ""
    key: list[str] = []
    since: _Place = UNSET
    until: _Place = UNSET
    wait_for: _Place = UNSET

    @property
    def bounds(self) -> dict[str, Any]:
        """Arguments of the client's query."""
        bounds = {name: getattr(self, name) or None for name in ("since", "until", "wait_for")}
        return bounds | {"keys": self.key or None}


class SearchFor(SearchParameters, frozen=True, kw_only=True):
    order: Literal["newest", "oldest", "best"] = "newest"
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 20
    after: _Place = UNSET
    event_bytes: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class CountBy(SearchParameters, frozen=True, kw_only=True):
    by: Annotated[str, Meta(min_length=1, max_length=4_096)]
    interval: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 20


# --- bodies ----------------------------------------------------------------------------------------------


class StreamRateBody(ResponseBody, frozen=True):
    """A stream, its number of current segments, and its mean write rates over the last ten seconds."""

    scopeName: str
    streamName: str
    segments: int
    isSealed: bool
    eventsPerSecond: float
    bytesPerSecond: float


class TransactionBody(ResponseBody, frozen=True):
    """A transaction. created, leaseMs: null after its end."""

    id: str
    state: Annotated[str, Meta(description="OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED.")]
    created: Moment
    leaseMs: int | None


class Scale(RequestBody, frozen=True):
    """Segments to replace, and the key ranges of their successors, which must cover the same keys."""

    segments: Annotated[list[Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]], Meta(min_length=1, max_length=1000)]
    ranges: Annotated[list[KeyRange], Meta(min_length=1, max_length=1000)]


class Scaling(ResponseBody, frozen=True):
    """The epoch of the stream before scaling."""

    epoch: int


class CutBody(ResponseBody, frozen=True):
    """A cut as text, and its time."""

    cut: str
    time: Moment


class SegmentSteps(ResponseBody, frozen=True):
    """A segment's bytes in equal steps of time between the first and the last event."""

    segment: int
    bytes: list[int]


class StreamSpan(ResponseBody, frozen=True):
    """The current head and tail of a stream. eventTime: the field with the event time; null by arrival, or if
    undefined. By event time, the cuts' `time` is that of the earliest and latest event, and `steps` contains the known
    distribution in between; bytesUnknown: bytes whose event times are still being read, otherwise null."""

    head: CutBody
    tail: CutBody
    isSealed: bool
    eventTime: str | None = None
    steps: list[SegmentSteps] = field(default_factory=list)
    bytesUnknown: int | None = None


class BookmarkBody(ResponseBody, frozen=True):
    """A bookmark. created: by the creating client's clock."""

    name: str
    streamName: str
    cut: str
    time: Moment
    created: int
    note: str
    tags: list[str]


class SliceBody(ResponseBody, frozen=True):
    name: str
    streamName: str
    start: CutBody
    end: CutBody
    created: int
    note: str
    tags: list[str]


class SearchHit(ResponseBody, frozen=True):
    """A matching event: its location, time of arrival, and an excerpt with most of the query's words; matches: their
    starts and ends in the excerpt, in Unicode characters. event: with invalid UTF-8 replaced; sizeBytes: of the
    complete event."""

    segment: int
    offset: int
    arrival_time: Moment
    score: float | None
    event: str
    sizeBytes: int
    excerpt: str | None
    matches: list[list[int]]


class SearchPage(ResponseBody, frozen=True):
    """A page of hits. count: number of all hits; next: the `after` of the next page, null on the last page."""

    count: int
    next: str | None
    hits: list[SearchHit]


class SearchCount(ResponseBody, frozen=True):
    """The number of events with this value, or within the interval that starts there."""

    value: str
    events: int


class UnreadableRecordBody(ResponseBody, frozen=True):
    """An unreadable record. name: its name, or its stream's."""

    kind: Annotated[str, Meta(description="bookmark, slice, stream table, search index or standing queries.")]
    name: str
    problem: str


class SearchDefinitions(ResponseBody, frozen=True):
    """The search index and standing queries of a stream."""

    streamName: str
    hasIndex: bool
    hasStandingQueries: bool


class SearchField(ResponseBody, frozen=True):
    """A field of an index. events: number of indexed events that have it."""

    name: str
    kind: Annotated[str, Meta(description="text, keyword, long, date …: see docs/search.md.")]
    events: int


class SearchIndex(ResponseBody, frozen=True):
    """The state of an index. events: indexed events; invalid: events that didn't parse; gaps: ranges of truncated or
    damaged data; backfillBytes: bytes to be backfilled; lagBytes: lag behind the tail, null if unknown; indexers:
    number of live indexers."""

    format: Annotated[str, Meta(description="json or text.")]
    fields: list[SearchField]
    isStopped: bool
    events: int
    invalid: int
    gaps: int
    backfillBytes: int
    lagBytes: int | None
    indexers: int


class StandingQueryBody(ResponseBody, frozen=True):
    """A standing query. created: by the creating client's clock."""

    name: str
    query: str
    created: int


class StandingQueriesBody(ResponseBody, frozen=True):
    """The standing queries of a stream, and their progress. hits: the stream of hits, as scope/stream; catchingUp:
    queries that are still matching past events; events: matched events; hitCount: hits so far; invalid: events that
    didn't parse; gaps, lagBytes: as in an index; matchers: number of live matchers; first: the first queries by
    name."""

    hits: str
    queries: int
    catchingUp: int
    isStopped: bool
    events: int
    hitCount: int
    invalid: int
    gaps: int
    lagBytes: int | None
    matchers: int
    first: list[StandingQueryBody]


class CreateBookmark(RequestBody, frozen=True):
    name: NewName
    streamName: NewName
    at: Place
    note: str = ""
    tags: Labels = field(default_factory=list)


class CreateSlice(RequestBody, frozen=True):
    name: NewName
    streamName: NewName
    start: Place
    end: Place
    note: str = ""
    tags: Labels = field(default_factory=list)


class Rename(RequestBody, frozen=True):
    name: NewName


class TruncateBody(RequestBody, frozen=True):
    at: Place


class ReaderGroupBody(ResponseBody, frozen=True):
    """A reader group that reads the stream. position: null if unknown, for the reason in `why`."""

    scopeName: str
    readerGroupName: str
    position: CutBody | None
    readers: int | None
    segments: int | None
    lagBytes: int | None
    lagEvents: int | None
    lagSeconds: float | None
    why: str


class EventBody(ResponseBody, frozen=True):
    """An event: `text` if it is UTF-8, otherwise `base64`; media: the type of a picture. time: of arrival, accurate to
    a second or, at low rates, to ten; or event time. due: playback time of a late event, if it differs. sizeBytes: of
    the complete event, if it is cut off."""

    segment: int
    offset: int
    time: int
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    media: str | UnsetType = UNSET
    sizeBytes: int | UnsetType = UNSET
    due: int | UnsetType = UNSET


class EventsMessage(ResponseBody, frozen=True):
    """The data of each server-sent event of type `batch`.

    at: playback position in milliseconds since 1970. next: time of the next event, if it is ahead. passed: number of
    events skipped before these; isBehind: whether further events were skipped uncounted to keep up. timeless: number of
    events skipped because they lack an event time.
    """

    at: int
    events: list[EventBody]
    passed: int = 0
    isBehind: bool = False
    next: int | None = None
    timeless: int = 0
