"""The metrics: their names, what each means, and how the figures become samples of them.

Labels are bounded: the busiest streams have a name, and the groups that are farthest behind; the rest counts as
`(others)` of the scope "".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nadi.controller.metrics.gather import OTHERS, Figures, StreamFigures
from nadi.controller.periodic.retention_rounds import Released
from nadi.controller.periodic.scaling_rounds import Counts
from nadi.limits import METRICS_GROUPS
from nadi.model.reports import GroupLagReport
from nadi.observe.metrics import Meaning, by_name, family

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_STREAM = ("scope", "stream")
_GROUP = ("scope", "reader_group", "stream")

MEANINGS = by_name(
    (
        Meaning("nadi_streams", "Streams, without internal ones."),
        Meaning("nadi_reader_groups", "Reader groups."),
        Meaning("nadi_stream_segments", "Current segments of a stream; 0 if it is sealed.", _STREAM),
        Meaning("nadi_stream_events_per_second", "Events written to a stream, mean of ten seconds.", _STREAM),
        Meaning(
            "nadi_stream_bytes_per_second",
            "Bytes written to a stream, event headers included, mean of ten seconds.",
            _STREAM,
        ),
        Meaning("nadi_stream_hot_keys", "Segments of a stream with a routing key that alone is too much.", _STREAM),
        Meaning("nadi_stream_kept_bytes", "Bytes of a stream from its head to its tail.", _STREAM),
        Meaning(
            "nadi_reader_group_lag_bytes",
            "Bytes of a stream after a reader group's recorded positions, event headers included.",
            _GROUP,
        ),
        Meaning(
            "nadi_reader_group_lag_events",
            "The same in events: an estimate from their mean size in the last 20 minutes.",
            _GROUP,
        ),
        Meaning(
            "nadi_reader_group_lag_seconds",
            "For how long the oldest event that a reader group has not read has waited, to about ten seconds.",
            _GROUP,
        ),
        Meaning("nadi_reader_group_segments", "Segments of a stream that a reader group reads now.", _GROUP),
        Meaning("nadi_reader_group_unassigned_segments", "Those of them that no reader has.", _GROUP),
        Meaning(
            "nadi_reader_group_readers",
            "Readers of a reader group, with dead ones that the others haven't noticed.",
            ("scope", "reader_group"),
        ),
        Meaning("nadi_scalings", "Decisions carried out to split or merge segments.", ("kind",), "counter"),
        Meaning("nadi_hot_keys_found", "Hot keys that were found.", (), "counter"),
        Meaning("nadi_retention_truncations", "Truncations by which retention moved a stream's head.", (), "counter"),
        Meaning("nadi_retention_released_bytes", "Bytes of streams that these released.", (), "counter"),
        Meaning("nadi_retention_age_seconds", "How long ago the last of them was."),
        Meaning("nadi_unfinished_workflows", "Changes of streams, groups and tables that are in progress."),
        Meaning("nadi_unfinished_transactions", "Transactions that are neither committed nor aborted."),
        Meaning("nadi_metrics_complete", "1 if all that is to be told was looked at in time, else 0."),
        Meaning("nadi_metrics_gathering_seconds", "How long it took to gather these figures."),
    )
)


def families(
    figures: Figures, counts: Counts, released: Released, unfinished: dict[str, int], now_s: float
) -> Iterator[Metric]:
    """All metrics with their samples. counts, released: of scalings and of retention, since the controller began.
    now_s: by its monotonic clock."""
    yield _family("nadi_streams", [((), figures.streams_count)])
    yield _family("nadi_reader_groups", [((), figures.groups_count)])
    yield from _of_streams(figures)
    yield from _of_groups(figures.lags)
    yield _family("nadi_scalings", [(("split",), counts.splits), (("merge",), counts.merges)])
    yield _family("nadi_hot_keys_found", [((), counts.hot_keys)])
    yield _family("nadi_retention_truncations", [((), released.truncations)])
    yield _family("nadi_retention_released_bytes", [((), released.size_bytes)])
    yield _family("nadi_retention_age_seconds", [((), None if released.at_s is None else now_s - released.at_s)])
    yield _family("nadi_unfinished_workflows", [((), unfinished["workflows"])])
    yield _family("nadi_unfinished_transactions", [((), unfinished["transactions"])])
    yield _family("nadi_metrics_complete", [((), int(figures.is_complete))])
    yield _family("nadi_metrics_gathering_seconds", [((), figures.took_s)])


def unavailable() -> Iterator[Metric]:
    """What there is to tell where nothing can be gathered."""
    yield _family("nadi_metrics_complete", [((), 0)])


def _family(name: str, samples: Iterable[tuple[tuple[str, ...], float | None]]) -> Metric:
    return family(MEANINGS[name], samples)


def _of_streams(figures: Figures) -> Iterator[Metric]:
    told: list[tuple[tuple[str, ...], StreamFigures]] = [(tuple(name), one) for name, one in figures.streams.items()]
    if figures.others is not None:
        told.append((("", OTHERS), figures.others))
    yield _family("nadi_stream_segments", ((labels, one.segments) for labels, one in told))
    yield _family("nadi_stream_events_per_second", ((labels, one.events_per_s) for labels, one in told))
    yield _family("nadi_stream_bytes_per_second", ((labels, one.bytes_per_s) for labels, one in told))
    yield _family("nadi_stream_hot_keys", ((labels, one.hot_keys) for labels, one in told))
    yield _family("nadi_stream_kept_bytes", ((labels, one.kept_bytes) for labels, one in told))


def _of_groups(lags: list[GroupLagReport]) -> Iterator[Metric]:
    """Only what is known has a sample: no lag is something else than an unknown one."""
    ordered = sorted(lags, key=lambda lag: (-(lag.bytes_behind or 0), lag.scope, lag.group, lag.stream))
    told = [((lag.scope, lag.group, lag.stream), lag) for lag in sorted(ordered[:METRICS_GROUPS], key=_place)]
    others = ordered[METRICS_GROUPS:]
    if others:
        told.append((("", OTHERS, OTHERS), _together(others)))
    yield _family("nadi_reader_group_lag_bytes", ((labels, lag.bytes_behind) for labels, lag in told))
    yield _family("nadi_reader_group_lag_events", ((labels, lag.events_behind) for labels, lag in told))
    yield _family("nadi_reader_group_lag_seconds", ((labels, lag.seconds_behind) for labels, lag in told))
    yield _family("nadi_reader_group_segments", ((labels, lag.segments) for labels, lag in told))
    yield _family("nadi_reader_group_unassigned_segments", ((labels, lag.unassigned) for labels, lag in told))
    readers = {(lag.scope, lag.group): lag.readers for _, lag in told if lag.group != OTHERS}
    yield _family("nadi_reader_group_readers", readers.items())


def _place(lag: GroupLagReport) -> tuple[str, str, str]:
    return lag.scope, lag.group, lag.stream


def _together(lags: list[GroupLagReport]) -> GroupLagReport:
    """Sums of what is known, and of the seconds the longest."""

    def total(values: Iterable[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return GroupLagReport(
        "",
        OTHERS,
        OTHERS,
        total(lag.bytes_behind for lag in lags),
        total(lag.events_behind for lag in lags),
        max((lag.seconds_behind for lag in lags if lag.seconds_behind is not None), default=None),
        None,
        total(lag.segments for lag in lags),
        total(lag.unassigned for lag in lags),
        "",
        None,
        None,
        "",
    )
