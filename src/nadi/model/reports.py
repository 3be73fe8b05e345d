"""What a controller reports about a stream, kind by kind: records that travel as JSON, over gRPC and REST alike."""

from __future__ import annotations

import msgspec

SEGMENTS = "segments"


class SegmentReport(msgspec.Struct, frozen=True):
    """One segment of a stream's history, past or present.

    low, high: its keys. created_ms, replaced_ms: in ms since 1970; replaced_ms is None if no other segment has
    replaced it. start_offset, end_offset: in bytes, what is left of it; equal if that is nothing. end_offset also is
    how much was ever written to it. rolled: it repeats another segment, for a transaction that came late.
    """

    segment_id: int
    low: float
    high: float
    created_ms: int
    replaced_ms: int | None
    start_offset: int
    end_offset: int
    rolled: bool = False
