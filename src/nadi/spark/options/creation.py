"""The policies of a stream that a write creates, as its options give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nadi.client.control.policy import RetentionPolicy, ScalingPolicy
from nadi.errors import InvalidArgumentError
from nadi.limits import STREAM_MAX_SEGMENTS
from nadi.spark.options.table import Format
from nadi.spark.options.values import flag, number


@dataclass(frozen=True, slots=True)
class Creation:
    """scope, stream: whether they are made if they are missing; the stream with these policies."""

    scope: bool
    stream: bool
    scaling: ScalingPolicy
    retention: RetentionPolicy | None


NO_CREATION = Creation(False, False, ScalingPolicy.fixed(1), None)


def creation_of(options: Mapping[str, str], format_: Format) -> Creation:
    is_pravegas = format_ is Format.PRAVEGA
    makes_stream = flag(options, "allow_create_stream", is_pravegas)
    for name in options:
        if name.startswith("default_") and not makes_stream and not is_pravegas:
            raise InvalidArgumentError(
                f"the option {name!r} has no effect: it is for streams that are created; say "
                ".option('allow_create_stream', 'true')"
            )
    return Creation(
        flag(options, "allow_create_scope", is_pravegas),
        makes_stream,
        _scaling(options, is_pravegas=is_pravegas),
        _retention(options),
    )


def _scaling(options: Mapping[str, str], *, is_pravegas: bool) -> ScalingPolicy:
    segments = number(options, "default_num_segments", 1, 1, STREAM_MAX_SEGMENTS)
    by_bytes, by_events = (f"default_segment_target_rate_{what}_per_sec" for what in ("bytes", "events"))
    factor = number(options, "default_scale_factor", 2, 2, STREAM_MAX_SEGMENTS)
    if by_bytes in options and by_events in options:
        raise InvalidArgumentError(f"the options {by_bytes!r} and {by_events!r} exclude each other")
    if by_bytes not in options and by_events not in options and "default_scale_factor" in options and not is_pravegas:
        raise InvalidArgumentError("the option 'default_scale_factor' has no effect without a target rate: give one")
    if by_bytes in options:
        return ScalingPolicy.by_data_rate(number(options, by_bytes, 0, 1024, 1 << 40) // 1024, factor, segments)
    if by_events in options:
        return ScalingPolicy.by_event_rate(number(options, by_events, 0, 1, (1 << 31) - 1), factor, segments)
    return ScalingPolicy.fixed(segments)


def _retention(options: Mapping[str, str]) -> RetentionPolicy | None:
    by_time, by_size = "default_retention_duration_milliseconds", "default_retention_size_bytes"
    if by_time in options and by_size in options:
        raise InvalidArgumentError(f"the options {by_time!r} and {by_size!r} exclude each other")
    if by_time in options:
        return RetentionPolicy.by_time(number(options, by_time, 0, 1, 1 << 50))
    if by_size in options:
        return RetentionPolicy.by_size(number(options, by_size, 0, 1, 1 << 60))
    return None
