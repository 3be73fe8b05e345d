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
    """streams: those told by name. others: all the rest together, streams_count with them. lags: of each group in each
    stream. is_complete: False if not everything was looked at."""

    streams: dict[StreamName, StreamFigures] = field(default_factory=dict)
    others: StreamFigures = field(default_factory=StreamFigures)
    streams_count: int = 0
    lags: list[GroupLagReport] = field(default_factory=list)
    groups_count: int = 0
    is_complete: bool = True
    took_s: float = 0.0
