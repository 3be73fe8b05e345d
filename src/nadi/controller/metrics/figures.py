"""The figures of one moment, as they are gathered; what is missing at the end was not known in time."""

from __future__ import annotations

from dataclasses import dataclass, field

from nadi.controller.state.metadata import StreamName
from nadi.model.reports import GroupLagReport

OTHERS = "(others)"  # no name of a stream or group


@dataclass(slots=True)
class StreamFigures:
    """segments: the current ones. kept_bytes: None if that isn't known."""

    segments: int = 0
    events_per_s: float = 0.0
    bytes_per_s: float = 0.0
    hot_keys: int = 0
    kept_bytes: int | None = None


@dataclass(slots=True)
class Figures:
    """streams: those told by name. others: all the rest together, None if there are no more. lags: of each group in
    each stream. streams_count, groups_count: of all there are, None if not all were looked at. is_complete: False if
    not everything was looked at."""

    streams: dict[StreamName, StreamFigures] = field(default_factory=dict)
    others: StreamFigures | None = None
    streams_count: int | None = None
    lags: list[GroupLagReport] = field(default_factory=list)
    groups_count: int | None = None
    is_complete: bool = True
    took_s: float = 0.0
