"""Parse times: datetimes with a zone, milliseconds since 1970, ISO 8601.

A time without a zone is rejected, because its meaning depends on the machine.

>>> moment_ms(moment_of("2026-11-14T00:00+01:00")) == moment_ms(moment_of("2026-11-13 23:00Z")) == 1794610800000
True
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from nadi.errors import InvalidArgumentError

HEAD, TAIL = "head", "tail"  # names of a stream's current start and end
# Commands or Spark options give these names, in any case, a meaning: bookmarks and slices can't have them.
RESERVED = (HEAD, TAIL, "earliest", "latest", "unbounded")
BY_EVENT_TIME = "event:"
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = datetime.fromtimestamp(0, UTC)
_MAX_MS = (1 << 63) - 1


def moment_ms(moment: datetime | int) -> int:
    """Return the time in whole milliseconds since 1970, 0 if earlier; raise InvalidArgumentError if it is invalid."""
    return max(time_ms(moment), 0)


def time_ms(moment: datetime | int) -> int:
    """Return the time, which may be before 1970, in whole milliseconds since then; raise InvalidArgumentError if it is
    invalid."""
    return time_us(moment) // 1_000


def time_us(moment: datetime | int) -> int:
    """Return the same as `time_ms`, in whole microseconds."""
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise InvalidArgumentError(
                f"{moment.isoformat()} lacks a time zone: use datetime(..., tzinfo=UTC) or .astimezone()"
            )
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if not isinstance(moment, int) or isinstance(moment, bool):
        raise InvalidArgumentError(
            f"{moment!r} is not a time: pass a datetime with a time zone, or whole milliseconds since 1970"
        )
    if moment > _MAX_MS:
        raise InvalidArgumentError(f"the time {moment} ms is out of range: pass milliseconds since 1970")
    return moment * 1_000


def event_moment(text: str) -> datetime | None:
    """Return the time of a position by event time: `event:` and an ISO 8601 time with a zone, or a date for its
    midnight in UTC. Return None for other positions; raise InvalidArgumentError if the time is invalid.

    >>> event_moment("event:2025-11-03")
    datetime.datetime(2025, 11, 3, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if not text.startswith(BY_EVENT_TIME):
        return None
    time = text.removeprefix(BY_EVENT_TIME)
    return moment_of(f"{time}T00:00Z" if _DATE.fullmatch(time) else time)


def is_time(text: str) -> bool:
    """Return whether the text begins with a date."""
    return _DATE.match(text) is not None


def is_moment(text: str) -> bool:
    """Return whether the text is meant as a time: names of bookmarks and texts of cuts don't contain a colon."""
    return ":" in text


def moment_of(text: str) -> datetime:
    """Parse an ISO 8601 time; raise InvalidArgumentError if it is invalid or lacks a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(
            f"{text[:60]!r} is not a time: write it as 2026-11-14T00:00Z or 2026-11-14T00:00+01:00"
        ) from None
    if moment.utcoffset() is None:
        example = text if is_moment(text) else moment.isoformat(timespec="minutes")  # a date can't have a zone
        raise InvalidArgumentError(f"{text!r} lacks a time zone: write {example}Z, or an offset as in {example}+01:00")
    return moment
