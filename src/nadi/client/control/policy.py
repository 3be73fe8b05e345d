"""Define scaling and retention policies and the configurations of streams and key-value tables."""

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


_INT32_MAX = (1 << 31) - 1  # Pravega's messages have 32-bit numbers here


@checked()
@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """Scaling policy of a stream; create one with `fixed`, `by_event_rate` or `by_data_rate`."""

    kind: int
    target_rate: int
    scale_factor: int
    min_segments: int

    def __post_init__(self) -> None:
        if self.min_segments < 1:
            raise InvalidArgumentError(f"a stream must have at least one segment, not {self.min_segments}")
        if self.kind != FIXED and self.target_rate < 1:
            raise InvalidArgumentError(f"the target rate per segment must be 1 or more, not {self.target_rate}")
        if max(self.min_segments, self.target_rate, self.scale_factor) > _INT32_MAX:
            raise InvalidArgumentError(f"the numbers of a scaling policy must be at most {_INT32_MAX:,}: {self}")

    @classmethod
    def fixed(cls, segments: int) -> ScalingPolicy:
        """Keep the number of segments fixed at `segments`."""
        return cls(FIXED, 0, 0, segments)

    @classmethod
    def by_event_rate(cls, events_per_s: int, scale_factor: int = 2, min_segments: int = 1) -> ScalingPolicy:
        """Split a segment above `events_per_s` into up to `scale_factor` segments (2 or more); merge quiet ones."""
        _check_factor(scale_factor)
        return cls(BY_EVENTS, events_per_s, scale_factor, min_segments)

    @classmethod
    def by_data_rate(cls, kib_per_s: int, scale_factor: int = 2, min_segments: int = 1) -> ScalingPolicy:
        """Scale like `by_event_rate`, but by the data rate in KiB/s."""
        _check_factor(scale_factor)
        return cls(BY_KBYTES, kib_per_s, scale_factor, min_segments)


@checked()
@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Retention policy of a stream; create one with `by_time` or `by_size`. A stream without one keeps everything.

    Data within the minimum is always kept. Reader groups that delay retention keep more, up to the maximum; bookmarks
    and named slices keep their data regardless of the maximum, unless the policy is `over_bookmarks`.

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
        """Keep events younger than `keep_ms`, and for reader groups events younger than `most_ms`.

        by_event_time: measure age by the events' own time, which requires a stream with an `event_time`.
        """
        return cls(BY_TIME, keep_ms, most_ms, over_bookmarks, by_event_time)

    @classmethod
    def by_size(cls, keep_bytes: int, most_bytes: int = NO_MAXIMUM, *, over_bookmarks: bool = False) -> RetentionPolicy:
        """Keep the newest `keep_bytes`, and for reader groups up to `most_bytes`. Sizes include event headers."""
        return cls(BY_SIZE, keep_bytes, most_bytes, over_bookmarks)


@dataclass(frozen=True, slots=True)
class RetentionHolder:
    """A subscriber, bookmark or slice that keeps data which the retention policy would truncate.

    kind: "subscriber", "bookmark" or "slice". name: for a subscriber "scope/reader group". bytes_after: bytes after
    `cut`, the start of the needed data.
    """

    kind: str
    name: str
    cut: StreamCut
    bytes_after: int


@dataclass(frozen=True, slots=True)
class RetentionStatus(Displayed):
    """The data that a stream currently keeps.

    oldest_at: arrival time of the oldest event by the server's clock, accurate to about ten seconds; None if there are
    no events. holders: up to 100 holders that delay truncation, the one with the oldest cut first; `more_holders`
    counts the others.
    """

    head: StreamCut
    size_bytes: int
    oldest_at: datetime | None
    holders: tuple[RetentionHolder, ...]
    more_holders: int


@checked()
@dataclass(frozen=True, slots=True)
class StreamConfiguration:
    """Configuration of a stream.

    timestamp_aggregation_timeout_ms: how long watermarks wait for a writer that no longer notes times.
    rollover_size_bytes: set by other Pravega clients; stored and returned, but nadi's chunks don't depend on it.
    event_time: the field with the time of an event.
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
    """Configuration of a key-value table, which never changes: the sizes of its keys and its number of partitions."""

    primary_key_bytes: int
    secondary_key_bytes: int = 0
    partitions: int = 1
    rollover_size_bytes: int = 0  # 0: the server's default

    def __post_init__(self) -> None:
        if not (self.primary_key_bytes > 0 and self.secondary_key_bytes >= 0 and self.rollover_size_bytes >= 0):
            raise InvalidArgumentError(
                "the primary key of a key-value table must have at least one byte, and sizes can't be negative"
            )
        if self.primary_key_bytes + self.secondary_key_bytes > TABLE_FIXED_KEY_MAX_BYTES:
            raise InvalidArgumentError(
                f"the two keys of a key-value table can have at most {TABLE_FIXED_KEY_MAX_BYTES} bytes together"
            )
        if not 1 <= self.partitions <= STREAM_MAX_SEGMENTS:
            raise InvalidArgumentError(f"a key-value table must have 1 to {STREAM_MAX_SEGMENTS:,} partitions")


def _check_factor(scale_factor: int) -> None:
    if scale_factor < 2:
        raise InvalidArgumentError(f"the scale factor must be 2 or more, not {scale_factor}")
