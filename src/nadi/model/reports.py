"""What a controller reports about a stream, kind by kind: records that travel as JSON, over gRPC and REST alike."""

from __future__ import annotations

import msgspec

SEGMENTS = "segments"
RETENTION = "retention"


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


class HolderReport(msgspec.Struct, frozen=True):
    """Who holds a stream's head back from where its retention policy would put it.

    kind: "subscriber", "bookmark" or "slice". cut: as text, from where on the data is needed; bytes_after: how much.
    """

    kind: str
    name: str
    cut: str
    bytes_after: int


class RetentionReport(msgspec.Struct, frozen=True):
    """What a stream keeps; the only record of its report.

    head: a cut's text. oldest_ms: when the oldest event came, in ms since 1970; 0 if there is none. holders: the
    farthest behind first; more_holders: how many there are besides.
    """

    head: str
    kept_bytes: int
    oldest_ms: int
    holders: list[HolderReport]
    more_holders: int
