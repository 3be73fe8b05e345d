"""How a stream scales and what it keeps, as applications specify it."""

from __future__ import annotations

from dataclasses import dataclass

from nadi.client.control.arguments import checked
from nadi.errors import InvalidArgumentError

NO_MAXIMUM = (1 << 63) - 1
FIXED, BY_KBYTES, BY_EVENTS = 0, 1, 2  # ScalingPolicyType on the wire
BY_TIME, BY_SIZE = 1, 2  # RetentionPolicyType on the wire


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

    @classmethod
    def fixed(cls, segments: int) -> ScalingPolicy:
        """Keep the number of segments fixed at `segments`."""
        return cls(FIXED, 0, 0, segments)

    @classmethod
    def by_event_rate(cls, events_per_s: int, scale_factor: int = 2, min_segments: int = 1) -> ScalingPolicy:
        """Split a segment above `events_per_s`, into at most `scale_factor`; merge cold ones."""
        return cls(BY_EVENTS, events_per_s, scale_factor, min_segments)

    @classmethod
    def by_data_rate(cls, kib_per_s: int, scale_factor: int = 2, min_segments: int = 1) -> ScalingPolicy:
        """Like `by_event_rate`, but by KiB/s."""
        return cls(BY_KBYTES, kib_per_s, scale_factor, min_segments)


@checked()
@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What a stream keeps: create one with `by_time` or `by_size`; a stream without one keeps everything."""

    kind: int
    minimum: int
    maximum: int = NO_MAXIMUM

    @classmethod
    def by_time(cls, keep_ms: int, most_ms: int = NO_MAXIMUM) -> RetentionPolicy:
        """Keep what is younger than `keep_ms`."""
        return cls(BY_TIME, keep_ms, most_ms)

    @classmethod
    def by_size(cls, keep_bytes: int, most_bytes: int = NO_MAXIMUM) -> RetentionPolicy:
        """Keep the newest `keep_bytes`."""
        return cls(BY_SIZE, keep_bytes, most_bytes)


@checked()
@dataclass(frozen=True, slots=True)
class StreamConfiguration:
    """What a stream was created with.

    timestamp_aggregation_timeout_ms: how long watermarks wait for a writer that no longer notes times.
    rollover_size_bytes: as set by other Pravega clients: stored and returned, but nadi's chunks don't roll by it.
    """

    scaling: ScalingPolicy
    retention: RetentionPolicy | None = None
    tags: tuple[str, ...] = ()
    timestamp_aggregation_timeout_ms: int = 0
    rollover_size_bytes: int = 0
