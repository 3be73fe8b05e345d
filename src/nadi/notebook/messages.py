"""What a browser says to the kernel, and what it is answered.

Each message has an id that the browser chose for a question; answers to it have the same one, and a kind:

    known → answer          what is to be known of the stream
    first → answer          a batch with the first events of a stretch
    play, tail → batch …    until `end`; `more` says that a batch was taken, `stop` that no more are wanted
    any → refused           {status, error}: 400 for what can't succeed, 503 for what may be tried again

An answer's JSON is in the one buffer of its message.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from nadi.controller.rest.bodies import ResponseBody
from nadi.limits import PAGE_BATCH_EVENTS
from nadi.model.reports import LoadReport, SegmentReport
from nadi.web.bodies import BookmarkSeen, SliceSeen, StreamSpan
from nadi.web.events import SPEED_LEAST, SPEED_MOST

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Text = Annotated[str, msgspec.Meta(max_length=4_096)]
_Moment = Annotated[int, msgspec.Meta(ge=-(1 << 52), lt=1 << 52)]
_By = Literal["arrival", "event-time"] | None


class Message(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    id: _Id


class Known(Message, frozen=True, tag="known"):
    """places: with bookmarks and slices, too. by: as in the page's endpoints."""

    places: bool = False
    by: _By = None


class Stretch(Message, frozen=True):
    """As in the page's endpoints: a named slice, or from one place to another, head and tail if left out."""

    slice: _Text = ""
    start: _Text = ""
    end: _Text = ""
    from_ms: _Moment | None = msgspec.field(name="from", default=None)
    to_ms: _Moment | None = msgspec.field(name="to", default=None)
    by: _By = None


class First(Stretch, frozen=True, tag="first"):
    most: Annotated[int, msgspec.Meta(ge=1, le=PAGE_BATCH_EVENTS)] = 1
    which: Literal["first", "last"] = "first"


class Play(Stretch, frozen=True, tag="play"):
    speed: Annotated[float, msgspec.Meta(ge=SPEED_LEAST, le=SPEED_MOST)] = 1.0
    pauses: Literal["keep", "skip"] = "keep"


class Tail(Message, frozen=True, tag="tail"):
    pass


class More(Message, frozen=True, tag="more"):
    pass


class Stop(Message, frozen=True, tag="stop"):
    pass


Question = Known | First | Play | Tail
Said = Question | More | Stop


class Refusal(ResponseBody, frozen=True):
    status: int
    error: str


class StreamKnown(ResponseBody, frozen=True):
    """bookmarks, slices: None if they weren't asked for, or are not permitted to be seen."""

    segments: list[SegmentReport]
    loads: list[LoadReport]
    span: StreamSpan
    bookmarks: list[BookmarkSeen] | None
    slices: list[SliceSeen] | None


def parsed(message: object) -> Said:
    """The message; msgspec.ValidationError says what is wrong with it. Numbers may be texts, as in a query."""
    found: Said = msgspec.convert(message, Said, strict=False)
    return found


def id_of(message: object) -> str | None:
    """Of a message that is something else, the id if it has one, so that whoever waits is answered."""
    found = message.get("id") if isinstance(message, dict) else None
    return found if isinstance(found, str) and len(found) <= 64 else None
