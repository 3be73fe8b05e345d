"""Reports of a controller about streams: JSON records, sent over gRPC and REST."""

from __future__ import annotations

import msgspec

from nadi.display import Displayed

SEGMENTS = "segments"
RETENTION = "retention"
SCALING = "scaling"
LOAD = "load"
GROUP_LAG = "group-lag"  # of the stream `_RG<group>`
STREAM_LAG = "stream-lag"  # of each group that reads the stream
IDENTITY = "identity"  # of the server or cluster


class SegmentReport(Displayed, msgspec.Struct, frozen=True):
    """A past or present segment of a stream.

    low, high: its keys. created_ms, replaced_ms: in ms since 1970; replaced_ms is None while it is current.
    start_offset, end_offset: its retained bytes; equal if none are. end_offset is also the number of bytes ever
    written. rolled: a copy of another segment, created for a transaction committed after a scaling.
    """

    segment_id: int
    low: float
    high: float
    created_ms: int
    replaced_ms: int | None
    start_offset: int
    end_offset: int
    rolled: bool = False


class IdentityReport(msgspec.Struct, frozen=True):
    """The identity of a server or cluster, independent of its address; the only record of its report."""

    id: str


class HolderReport(msgspec.Struct, frozen=True):
    """A subscriber or cut that delays a stream's truncation.

    kind: "subscriber", "bookmark" or "slice". cut: as text, the start of the needed data; bytes_after: its size.
    """

    kind: str
    name: str
    cut: str
    bytes_after: int


class RetentionReport(msgspec.Struct, frozen=True):
    """The retained data of a stream; the only record of its report.

    head: a cut's text. oldest_ms: arrival of the oldest event, in ms since 1970; 0 for an empty stream. holders: those
    with the oldest cuts first; more_holders: the number of others.
    """

    head: str
    retained_bytes: int
    oldest_ms: int
    holders: list[HolderReport]
    more_holders: int


class ScalingReport(Displayed, msgspec.Struct, frozen=True):
    """A scaling decision for a stream's segments.

    number: counts the stream's decisions. kind: "split", "merge" or "hot-key". segments: the replaced segments; into:
    the key ranges of their successors. rate, target: in `unit`, "events/s" or "KiB/s". profile: the scaling profile.
    epoch: the new epoch, -1 without a change. is_done: False if another change came first, or the controller died
    before it started.
    """

    number: int
    at_ms: int
    kind: str
    segments: list[int]
    into: list[tuple[float, float]]
    rate: float
    target: int
    unit: str
    why: str
    profile: str
    epoch: int
    is_done: bool


class HotKeyReport(msgspec.Struct, frozen=True):
    """A key whose load alone exceeds its segment's target.

    position: in the key space; share: of the segment's load, from 0 to 1. Both are None if no writer reports its keys.
    """

    position: float | None
    share: float | None


class LoadReport(Displayed, msgspec.Struct, frozen=True):
    """The current load of one of a stream's segments.

    events_per_s, bytes_per_s: means over 2 s, 10 s, 2, 5, 10 and 20 minutes (`nadi.model.load.WINDOWS_S`); all 0 for
    a segment without load. has_keys: writers report their keys' positions in the key space.
    """

    segment_id: int
    low: float
    high: float
    events_per_s: list[float]
    bytes_per_s: list[float]
    has_keys: bool
    hot_key: HotKeyReport | None


class GroupLagReport(Displayed, msgspec.Struct, frozen=True):
    """A reader group's lag on one of its streams, relative to the tail or to the group's end cut.

    stream: as "scope/stream". lag_bytes: exact, including event headers, from the recorded position. lag_events:
    an estimate from the mean event size of the last 20 minutes. lag_seconds: a lower bound of the oldest unread
    event's wait, at most about ten seconds or 2 % too low. readers: online in the group, including dead ones not yet
    detected. segments: the stream's segments that the group reads now; unassigned: those without a reader. source: of
    the position, "readers", or "subscriber" if only the group's subscription is known. recorded_every_s: maximum age of
    a position while its reader works; published_ms: when a subscriber published its position, in ms since 1970.
    Unknown values are None; why: the reason if the position is unknown.
    """

    scope: str
    group: str
    stream: str
    lag_bytes: int | None
    lag_events: int | None
    lag_seconds: float | None
    readers: int | None
    segments: int | None
    unassigned: int | None
    source: str
    recorded_every_s: float | None
    published_ms: int | None
    why: str


class StreamLagReport(msgspec.Struct, frozen=True):
    """The loads of a stream's current segments, its most recently replaced segments, the newest first, and the lag of
    each group that reads it."""

    stream: str
    segments: list[LoadReport]
    replaced: list[SegmentReport]
    groups: list[GroupLagReport]
