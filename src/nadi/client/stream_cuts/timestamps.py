"""Moments as callers give them: datetimes with a zone, milliseconds since 1970, ISO 8601.

A time without a zone is refused, for it means another moment on each machine.

>>> moment_ms(moment_of("2026-11-14T00:00+01:00")) == moment_ms(moment_of("2026-11-13 23:00Z")) == 1794610800000
True
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from nadi.errors import InvalidArgumentError

HEAD, TAIL = "head", "tail"  # a stream's own cuts, by name
# In any case of letters, commands or Spark's options mean these by themselves: no bookmark or slice is called so.
RESERVED = (HEAD, TAIL, "earliest", "latest", "unbounded")
BY_EVENT_TIME = "event:"
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = datetime.fromtimestamp(0, UTC)
_MAX_MS = (1 << 63) - 1


def moment_ms(moment: datetime | int) -> int:
    """The moment in whole milliseconds since 1970; 0 for all before. InvalidArgumentError if it is no moment."""
    return max(time_ms(moment), 0)


def time_ms(moment: datetime | int) -> int:
    """A time that may lie before 1970, in whole milliseconds since then. InvalidArgumentError if it is none."""
    return time_us(moment) // 1_000


def time_us(moment: datetime | int) -> int:
    """As `time_ms`, in whole microseconds."""
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise InvalidArgumentError(
                f"{moment.isoformat()} has no time zone: say which with datetime(..., tzinfo=UTC) or .astimezone()"
            )
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if not isinstance(moment, int) or isinstance(moment, bool):
        raise InvalidArgumentError(
            f"{moment!r} is not a moment: pass a datetime with a time zone, or whole milliseconds since 1970"
        )
    if moment > _MAX_MS:
        raise InvalidArgumentError(f"{moment} ms is too late for any moment: milliseconds since 1970 are wanted")
    return moment * 1_000


def event_moment(text: str) -> datetime | None:
    """The time of a place by event time, `event:` and a time in ISO 8601, of which a date alone is its midnight in UTC;
    None for any other place. InvalidArgumentError if it has no zone, or is no time.

    >>> event_moment("event:2025-11-03")
    datetime.datetime(2025, 11, 3, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if not text.startswith(BY_EVENT_TIME):
        return None
    time = text.removeprefix(BY_EVENT_TIME)
    return moment_of(f"{time}T00:00Z" if _DATE.fullmatch(time) else time)


def is_time(text: str) -> bool:
    """Whether the text begins as a date does."""
    return _DATE.match(text) is not None


def is_moment(text: str) -> bool:
    """Whether the text is meant for a time: no bookmark's name and no cut's text has a colon."""
    return ":" in text


def moment_of(text: str) -> datetime:
    """The moment of a time in ISO 8601; InvalidArgumentError if it isn't one, or has no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(
            f"{text[:60]!r} is not a time: write it as 2026-11-14T00:00Z or 2026-11-14T00:00+01:00"
        ) from None
    if moment.utcoffset() is None:
        said = text if is_moment(text) else moment.isoformat(timespec="minutes")  # a date alone has no zone
        raise InvalidArgumentError(f"{text!r} has no time zone: say {said}Z, or with an offset as {said}+01:00")
    return moment
