"""What the page's endpoints take and return: queries, and JSON objects as `controller.rest.bodies` has the others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from nadi.controller.rest.bodies import RequestBody, ResponseBody
from nadi.limits import PAGE_BATCH_EVENTS

_NAME_SCHEMA: dict[str, Any] = {"minLength": 1, "maxLength": 255}
Moment = Annotated[int | None, Meta(description="Milliseconds since 1970; null if it isn't known.")]
Place = Annotated[
    str,
    Meta(
        min_length=1,
        description="head, tail, a time (ISO 8601 with a zone; behind `event:`, or a date there, the events' own), the "
        "text of a cut, or a bookmark's name.",
    ),
]
NewName = Annotated[str, Meta(description="Letters, digits, '.' and '-'.", extra_json_schema=_NAME_SCHEMA)]
Labels = Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=128)]
KeyRange = Annotated[list[Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=2, max_length=2)]


# --- queries ---------------------------------------------------------------------------------------------

_Place = Annotated[str, Meta(min_length=1, max_length=4_096)] | UnsetType
_Ms = Annotated[int, Meta(ge=-(1 << 52), lt=1 << 52)] | UnsetType
ABOUT = {  # the parameters; those of one query, by its name, too
    "after": "The page that begins there: `next` of the one before.",
    "at": "A place: see the bodies of bookmarks.",
    "by": "Whether times are of arrival or the events' own. Left out: the latter where the stream names a field with "
    "them.",
    "CountBy.by": "Count by that field, or by _came.",
    "CountBy.limit": "The most frequent so many.",
    "end": "Where it ends: the current tail if it is left out.",
    "eventBytes": "Of each event at most so many; all if it is left out.",
    "from": "Milliseconds since 1970: nothing that came, or happened, earlier.",
    "interval": "Of a count by time, or of numbers: in seconds.",
    "key": "Only segments that have that routing key, and others; may be said several times.",
    "limit": "Hits of a page; it has fewer, and a `next`, where its events have more than 16 MiB.",
    "most": "How many events; 1 if it is left out.",
    "order": "Which come first.",
    "pauses": "skip jumps over times without events.",
    "query": "What to find: see docs/search.md.",
    "since": "Only events from that place on: see the bodies of bookmarks.",
    "slice": "The named slice to be played, instead of start and end.",
    "speed": "How many seconds pass in one, at most a week; 1 if it is left out.",
    "start": "Where the stretch begins, a place as in `cut`: the head if it is left out.",
    "stream": "Only those of that stream.",
    "TailFrom.start": "Where to begin, a place as in `cut`: the tail if it is left out.",
    "to": "Milliseconds since 1970: nothing that came, or happened, then or later.",
    "until": "Only events up to that place.",
    "waitFor": "Answer once all up to that place is indexed.",
    "which": "first, or last for the events at the stretch's end.",
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
    """A named slice, or from one place to another."""

    slice: _Place = UNSET
    start: _Place = UNSET
    end: _Place = UNSET
    from_ms: _Ms = field(name="from", default=UNSET)
    to_ms: _Ms = field(name="to", default=UNSET)


class FirstEvents(EventRange, frozen=True, kw_only=True):
    most: Annotated[int, Meta(ge=1, le=PAGE_BATCH_EVENTS)] = 1
    which: Literal["first", "last"] = "first"


class Played(EventRange, frozen=True, kw_only=True):
    speed: Annotated[float, Meta(ge=0.01, le=604_800.0)] = 1.0
    pauses: Literal["keep", "skip"] = "keep"


class Searched(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    query: str = ""
    key: list[str] = []
    since: _Place = UNSET
    until: _Place = UNSET
    wait_for: _Place = UNSET

    @property
    def bounds(self) -> dict[str, Any]:
        """As the client takes them."""
        bounds = {name: getattr(self, name) or None for name in ("since", "until", "wait_for")}
        return bounds | {"keys": self.key or None}


class SearchFor(Searched, frozen=True, kw_only=True):
    order: Literal["newest", "oldest", "best"] = "newest"
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 20
    after: _Place = UNSET
    event_bytes: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class CountBy(Searched, frozen=True, kw_only=True):
    by: Annotated[str, Meta(min_length=1, max_length=4_096)]
    interval: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 20


# --- bodies ----------------------------------------------------------------------------------------------


class StreamRateBody(ResponseBody, frozen=True):
    """A stream, the number of its current segments, and what passes into it: means over the last ten seconds."""

    scopeName: str
    streamName: str
    segments: int
    isSealed: bool
    eventsPerSecond: float
    bytesPerSecond: float


class TransactionSeen(ResponseBody, frozen=True):
    """created, leaseMs: null for one that has ended, of which only the end is known."""

    id: str
    state: Annotated[str, Meta(description="OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED.")]
    created: Moment
    leaseMs: int | None


class Scale(RequestBody, frozen=True):
    """The segments to be replaced, and the key ranges of those that replace them: together the same keys."""

    segments: Annotated[list[Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]], Meta(min_length=1, max_length=1000)]
    ranges: Annotated[list[KeyRange], Meta(min_length=1, max_length=1000)]


class Scaling(ResponseBody, frozen=True):
    """The epoch that the stream had before."""

    epoch: int


class CutSeen(ResponseBody, frozen=True):
    """A cut as text, and when its stream stood there."""

    cut: str
    time: Moment


class StepsSeen(ResponseBody, frozen=True):
    """A segment's bytes in equal steps of time, from the first event's to the last one's."""

    segment: int
    bytes: list[int]


class StreamSpan(ResponseBody, frozen=True):
    """Where a stream begins and ends now. eventTime: the field with its events' time, null if it has none, or by
    arrival. By event time `time` is the first of all and the last, and steps tell how the events lie in between, as far
    as their times are known; bytesUnknown: in how many they aren't yet, while they are being read, otherwise null."""

    head: CutSeen
    tail: CutSeen
    isSealed: bool
    eventTime: str | None = None
    steps: list[StepsSeen] = field(default_factory=list)
    bytesUnknown: int | None = None


class BookmarkSeen(ResponseBody, frozen=True):
    """made: by its maker's clock."""

    name: str
    streamName: str
    cut: str
    time: Moment
    made: int
    note: str
    tags: list[str]


class SliceSeen(ResponseBody, frozen=True):
    name: str
    streamName: str
    start: CutSeen
    end: CutSeen
    made: int
    note: str
    tags: list[str]


class SearchHit(ResponseBody, frozen=True):
    """An event that was found: where it is, when it came, and the part of its text with most of the query's words,
    which begin and end at `found` there, in characters of Unicode. event: what isn't UTF-8 in it is replaced;
    sizeBytes: of all of it."""

    segment: int
    offset: int
    came: Moment
    score: float | None
    event: str
    sizeBytes: int
    excerpt: str | None
    found: list[list[int]]


class SearchPage(ResponseBody, frozen=True):
    """count: of all that fit; next: with which the next page begins, as `after`; null on the last one."""

    count: int
    next: str | None
    hits: list[SearchHit]


class SearchCount(ResponseBody, frozen=True):
    """How many events have that value, or came in the interval that begins there."""

    value: str
    events: int


class UnreadableSeen(ResponseBody, frozen=True):
    """name: its own, or that of its stream."""

    kind: Annotated[str, Meta(description="bookmark, slice, stream table, search index or standing queries.")]
    name: str
    problem: str


class SearchKept(ResponseBody, frozen=True):
    """What search keeps of a stream."""

    streamName: str
    hasIndex: bool
    hasStandingQueries: bool


class SearchField(ResponseBody, frozen=True):
    """events: how many of those that were indexed have it."""

    name: str
    kind: Annotated[str, Meta(description="text, keyword, long, date …: see docs/search.md.")]
    events: int


class SearchIndex(ResponseBody, frozen=True):
    """An index, and how far it is. events: that were indexed; unfit: that didn't parse; gaps: where data was gone or
    damaged; bytesOfPast: that are still to be indexed by many; bytesBehind: from where all before is indexed to the
    tail, null where that can't be told; indexers: who said something lately."""

    format: Annotated[str, Meta(description="json or text.")]
    fields: list[SearchField]
    isStopped: bool
    events: int
    unfit: int
    gaps: int
    bytesOfPast: int
    bytesBehind: int | None
    indexers: int


class StandingQuerySeen(ResponseBody, frozen=True):
    """made: by its maker's clock."""

    name: str
    query: str
    made: int


class StandingQueriesSeen(ResponseBody, frozen=True):
    """The standing queries of a stream, and how far it is matched with them. hits: the stream that has them, as
    scope/stream; catchingUp: queries that are still in the past; found: hits so far, of so many events; unfit: events
    that didn't parse; gaps, bytesBehind: as of an index; matchers: who said something lately; first: the first of the
    queries, by name."""

    hits: str
    queries: int
    catchingUp: int
    isStopped: bool
    events: int
    found: int
    unfit: int
    gaps: int
    bytesBehind: int | None
    matchers: int
    first: list[StandingQuerySeen]


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


class GroupSeen(ResponseBody, frozen=True):
    """A reader group that reads the stream. position: null if that isn't known, and `why` says why."""

    scopeName: str
    readerGroupName: str
    position: CutSeen | None
    readers: int | None
    segments: int | None
    bytesBehind: int | None
    eventsBehind: int | None
    secondsBehind: float | None
    why: str


class EventSeen(ResponseBody, frozen=True):
    """An event: `text` if it is UTF-8, otherwise `base64`; of pictures `media` is the type. time: when it came, to a
    second or so, ten where little came; or its own. due: when it is played, if that is later, for it came late.
    sizeBytes: of the whole event, if only its start is here."""

    segment: int
    offset: int
    time: int
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    media: str | UnsetType = UNSET
    sizeBytes: int | UnsetType = UNSET
    due: int | UnsetType = UNSET


class EventsMessage(ResponseBody, frozen=True):
    """The data of each server-sent event of the kind `batch`.

    at: how far it is played, in milliseconds since 1970. next: when the next event came, if that lies ahead. passed:
    how many events were left out before these; isBehind: and others, uncounted, because there was no time for them.
    timeless: how many were, because they have no time of their own.
    """

    at: int
    events: list[EventSeen]
    passed: int = 0
    isBehind: bool = False
    next: int | None = None
    timeless: int = 0
