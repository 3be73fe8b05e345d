"""How a stream scales, what it keeps, and what a key-value table is like, as applications specify it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from nadi.client.control.arguments import checked
from nadi.display import Displayed
from nadi.errors import InvalidArgumentError
from nadi.limits import STREAM_MAX_SEGMENTS, TABLE_FIXED_KEY_MAX_BYTES
from nadi.model.event_time import EventTime
from nadi.model.streamcut import StreamCut

NO_MAXIMUM = (1 << 63) - 1
FIXED, BY_KBYTES, BY_EVENTS = 0, 1, 2  # ScalingPolicyType on the wire
BY_TIME, BY_SIZE = 1, 2  # RetentionPolicyType on the wire


_MOST = (1 << 31) - 1  # Pravega's messages have numbers of 32 bits here


@checked()
@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """How a stream scales: create one with `fixed`, `by_event_rate` or `by_data_rate`."""

    kind: int
    target_rate: int
    scale_factor: int
    min_segments: int

    def __post_init__(self) -> None:
        if self.min_segments < 1:
            raise InvalidArgumentError(f"a stream needs at least one segment, not {self.min_segments}")
        if self.kind != FIXED and self.target_rate < 1:
            raise InvalidArgumentError(f"the target rate is {self.target_rate}: give 1 or more for a segment")
        if max(self.min_segments, self.target_rate, self.scale_factor) > _MOST:
            raise InvalidArgumentError(f"the numbers of a scaling policy are at most {_MOST:,}: {self}")

    @classmethod
    def fixed(cls, segments: int) -> ScalingPolicy:
        """Keep the number of segments fixed at `segments`."""
        return cls(FIXED, 0, 0, segments)

    @classmethod
    def by_event_rate(cls, events_per_s: int, scale_factor: int = 2, min_segments: int = 1) -> ScalingPolicy:
        """Split a segment above `events_per_s`, into at most `scale_factor` (2 or more); merge quiet ones."""
        _check_factor(scale_factor)
        return cls(BY_EVENTS, events_per_s, scale_factor, min_segments)

    @classmethod
    def by_data_rate(cls, kib_per_s: int, scale_factor: int = 2, min_segments: int = 1) -> ScalingPolicy:
        """Like `by_event_rate`, but by KiB/s."""
        _check_factor(scale_factor)
        return cls(BY_KBYTES, kib_per_s, scale_factor, min_segments)


@checked()
@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What a stream keeps: create one with `by_time` or `by_size`; a stream without one keeps everything.

    What is within the minimum is kept in any case. Reader groups that hold back retention keep more, up to the maximum;
    bookmarks and named slices keep what they name, whatever the maximum is, unless the policy is `over_bookmarks`.

    >>> RetentionPolicy.by_time(3_600_000, 24 * 3_600_000).maximum
    86400000
    >>> RetentionPolicy.by_size(1 << 30, over_bookmarks=True).over_bookmarks
    True
    """

    kind: int
    minimum: int
    maximum: int = NO_MAXIMUM
    over_bookmarks: bool = False
    by_event_time: bool = False

    @classmethod
    def by_time(
        cls, keep_ms: int, most_ms: int = NO_MAXIMUM, *, over_bookmarks: bool = False, by_event_time: bool = False
    ) -> RetentionPolicy:
        """Keep what is younger than `keep_ms`, and for reader groups what is younger than `most_ms`.

        by_event_time: by the time that the events have themselves, which needs a stream with an `event_time`.
        """
        return cls(BY_TIME, keep_ms, most_ms, over_bookmarks, by_event_time)

    @classmethod
    def by_size(cls, keep_bytes: int, most_bytes: int = NO_MAXIMUM, *, over_bookmarks: bool = False) -> RetentionPolicy:
        """Keep the newest `keep_bytes`, and for reader groups up to `most_bytes`. Headers of events count."""
        return cls(BY_SIZE, keep_bytes, most_bytes, over_bookmarks)


@dataclass(frozen=True, slots=True)
class RetentionHolder:
    """Who holds back the head of a stream from where its retention policy would put it.

    kind: "subscriber", "bookmark" or "slice". name: a subscriber's is "scope/reader group". bytes_after: how much lies
    after `cut`, from where on the data is needed.
    """

    kind: str
    name: str
    cut: StreamCut
    bytes_after: int


@dataclass(frozen=True, slots=True)
class Retained(Displayed):
    """What a stream keeps now.

    oldest_at: when the oldest event came, to about ten seconds, by the server's clock; None if there is none. held_by:
    those because of whom it isn't less, the farthest behind first; at most 100, and `more_holders` others.
    """

    head: StreamCut
    size_bytes: int
    oldest_at: datetime | None
    held_by: tuple[RetentionHolder, ...]
    more_holders: int


@checked()
@dataclass(frozen=True, slots=True)
class StreamConfiguration:
    """What a stream was created with.

    timestamp_aggregation_timeout_ms: how long watermarks wait for a writer that no longer notes times.
    rollover_size_bytes: as set by other Pravega clients: stored and returned, but nadi's chunks don't roll by it.
    event_time: the field that has the time of an event.
    """

    scaling: ScalingPolicy
    retention: RetentionPolicy | None = None
    tags: tuple[str, ...] = ()
    timestamp_aggregation_timeout_ms: int = 0
    rollover_size_bytes: int = 0
    event_time: EventTime | None = None


@checked()
@dataclass(frozen=True, slots=True)
class KeyValueTableConfiguration:
    """How long the keys of a table are, and over how many partitions they are spread; it never changes."""

    primary_key_bytes: int
    secondary_key_bytes: int = 0
    partitions: int = 1
    rollover_size_bytes: int = 0  # 0: the server's own

    def __post_init__(self) -> None:
        if not (self.primary_key_bytes > 0 and self.secondary_key_bytes >= 0 and self.rollover_size_bytes >= 0):
            raise InvalidArgumentError(
                "a key-value table needs a primary key of at least one byte, and no negative sizes"
            )
        if self.primary_key_bytes + self.secondary_key_bytes > TABLE_FIXED_KEY_MAX_BYTES:
            raise InvalidArgumentError(f"both keys of a table together have at most {TABLE_FIXED_KEY_MAX_BYTES} bytes")
        if not 1 <= self.partitions <= STREAM_MAX_SEGMENTS:
            raise InvalidArgumentError(f"a key-value table has 1 to {STREAM_MAX_SEGMENTS:,} partitions")


def _check_factor(scale_factor: int) -> None:
    if scale_factor < 2:
        raise InvalidArgumentError(f"a split makes at least 2 segments: the scale factor can't be {scale_factor}")
