"""What a controller reports about a stream, kind by kind: records that travel as JSON, over gRPC and REST alike."""

from __future__ import annotations

import msgspec

from nadi.display import Displayed

SEGMENTS = "segments"
RETENTION = "retention"
SCALING = "scaling"
LOAD = "load"
GROUP_LAG = "group-lag"  # of the stream `_RG<group>`
STREAM_LAG = "stream-lag"  # of each group that reads the stream
IDENTITY = "identity"  # of the server or the cluster itself; of no stream


class SegmentReport(Displayed, msgspec.Struct, frozen=True):
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


class IdentityReport(msgspec.Struct, frozen=True):
    """By what a server, or a cluster, is told from others, whatever its address; the only record of its report."""

    id: str


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


class ScalingReport(Displayed, msgspec.Struct, frozen=True):
    """One decision about a stream's segments, by its policy and load.

    number: counts the stream's decisions. kind: "split", "merge" or "hot-key". segments: those that it was about; into:
    the key ranges of what replaced them. rate, target: in `unit`, "events/s" or "KiB/s". profile: whose rules decided.
    epoch: the one that began with it, -1 if nothing was to change. is_done: False if somebody else was faster, or the
    controller died before it began.
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
    """A key that alone is over what its segment may have. position: in the key space; share: of the segment's load,
    from 0 to 1. Both are None if no writer reports its keys."""

    position: float | None
    share: float | None


class LoadReport(Displayed, msgspec.Struct, frozen=True):
    """What passes into one of a stream's current segments now.

    events_per_s, bytes_per_s: means, over 2 s, 10 s, 2, 5, 10 and 20 minutes (`nadi.model.load.WINDOWS_S`); all 0 for
    a segment without load. has_keys: writers report where in the key space their events fall.
    """

    segment_id: int
    low: float
    high: float
    events_per_s: list[float]
    bytes_per_s: list[float]
    has_keys: bool
    hot_key: HotKeyReport | None


class GroupLagReport(Displayed, msgspec.Struct, frozen=True):
    """How far a reader group is behind the tail of one of its streams, or behind the end that it reads to.

    stream: as "scope/stream". bytes_behind: exact, event headers included, from the recorded position. events_behind:
    these bytes by the mean size of the stream's events in the last 20 minutes, an estimate. seconds_behind: for how
    long the oldest unread event has waited, at least; at most about ten seconds longer, or 2 %. readers: online in the
    group, including dead ones not noticed yet. segments: those of the stream that the group reads now; unassigned: of
    them, those without a reader. source: whose position that is, "readers" or, of groups of which only that is known,
    "subscriber". recorded_every_s: how old a position can be while its reader is at work; published_ms: when a
    subscriber's was published, in ms since 1970. Whatever is unknown is None; why: the reason if the position is.
    """

    scope: str
    group: str
    stream: str
    bytes_behind: int | None
    events_behind: int | None
    seconds_behind: float | None
    readers: int | None
    segments: int | None
    unassigned: int | None
    source: str
    recorded_every_s: float | None
    published_ms: int | None
    why: str


class StreamLagReport(msgspec.Struct, frozen=True):
    """A stream's current segments with what passes into them, those that were replaced last, the newest first, and the
    lag of each group that reads it."""

    stream: str
    segments: list[LoadReport]
    replaced: list[SegmentReport]
    groups: list[GroupLagReport]
