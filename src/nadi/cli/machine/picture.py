"""What goes on in a server at one moment, for `nadi top`: from its REST port, or as far as a client can see.

At the REST port a server tells what it measures of streams and reader groups, of itself, of its health, and of the
others, in a cluster. A client asks stream by stream, so it looks at no more than MOST_STREAMS.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from nadi.errors import ConflictError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from nadi.cli.cluster.asking import RestClient
    from nadi.client import StreamManager
    from nadi.observe.health import Component

MOST_STREAMS = 200
_STREAMS = {
    "nadi_stream_segments": "segments",
    "nadi_stream_events_per_second": "events/s",
    "nadi_stream_bytes_per_second": "bytes/s",
    "nadi_stream_kept_bytes": "kept bytes",
    "nadi_stream_hot_keys": "hot keys",
}
_GROUPS = {
    "nadi_reader_group_lag_bytes": "bytes",
    "nadi_reader_group_lag_events": "events",
    "nadi_reader_group_lag_seconds": "seconds",
    "nadi_reader_group_segments": "segments",
    "nadi_reader_group_unassigned_segments": "unassigned",
}
_SERVER = {
    "nadi_streams": "streams",
    "nadi_reader_groups": "reader groups",
    "nadi_unfinished_workflows": "workflows",
    "nadi_unfinished_transactions": "transactions",
    "process_resident_memory_bytes": "memory bytes",
    "process_cpu_seconds_total": "cpu s",
    "process_open_fds": "open files",
}


class Picture(msgspec.Struct):
    """streams: the one that takes most bytes first; groups: the one that is farthest behind first. cpu_s: what the
    server's process has used, None where only a client looks. note: what can't be seen."""

    at_ms: int
    source: str
    status: str
    ill: list[str]
    server: dict[str, Any]
    servers: list[dict[str, Any]]
    streams: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    note: str = ""

    @property
    def cpu_s(self) -> float | None:
        return self.server.get("cpu s")


def by_rest(client: RestClient) -> Picture:
    """From a server's REST port; UnavailableError if it gives no answer."""
    from prometheus_client.parser import text_string_to_metric_families

    from nadi.observe.health import Component

    health = client.asked("GET", f"{client.first}/v1/health", Component)
    text = client.text(f"{client.first}/metrics").body.decode()
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as error:
        raise UnavailableError(f"{client.first} tells something else than metrics: {error}") from None
    return picture_of(health, families, servers=_servers(client), source=client.first)


def picture_of(health: Component, families: Iterable[Metric], *, servers: list[dict[str, Any]], source: str) -> Picture:
    """What a server's health and metrics say."""
    streams: defaultdict[tuple[str, ...], dict[str, Any]] = defaultdict(dict)
    groups: defaultdict[tuple[str, ...], dict[str, Any]] = defaultdict(dict)
    readers: dict[tuple[str, str], int] = {}
    server: dict[str, Any] = {}
    note = ""
    for sample in (one for family in families for one in family.samples):
        name, labels, value = sample.name, sample.labels, sample.value
        if name in _STREAMS:
            streams[labels["scope"], labels["stream"]][_STREAMS[name]] = _number(value)
        elif name in _GROUPS:
            groups[labels["scope"], labels["reader_group"], labels["stream"]][_GROUPS[name]] = _number(value)
        elif name == "nadi_reader_group_readers":
            readers[labels["scope"], labels["reader_group"]] = int(value)
        elif name in _SERVER:
            server[_SERVER[name]] = _number(value)
        elif name == "nadi_build_info":
            server["version"] = labels["version"]
        elif name == "nadi_metrics_complete" and not value:
            note = "the server couldn't look at everything in time"
    if not streams and servers and "streams" not in server:
        note = "streams are told by the server that has the active controller"
    return Picture(
        at_ms=time.time_ns() // 1_000_000,
        source=source,
        status=health.status.value,
        ill=[one.name for one in _leaves(health) if one.status.value != "UP"],
        server=server,
        servers=servers,
        streams=_by_rate(
            {"stream": "/".join(name)} | dict.fromkeys(_STREAMS.values()) | row for name, row in streams.items()
        ),
        groups=_by_lag(
            {"group": f"{scope}/{group}", "stream": stream}
            | dict.fromkeys(_GROUPS.values())
            | row
            | {"readers": readers.get((scope, group))}
            for (scope, group, stream), row in groups.items()
        ),
        note=note,
    )


def by_client(manager: StreamManager, controller: str) -> Picture:
    """As far as a client sees: streams and reader groups, stream by stream."""
    streams, groups, note, looked = [], [], "", 0
    for scope in sorted(one for one in manager.list_scopes() if not one.startswith("_")):
        try:
            names = sorted(manager.list_streams(scope))
            if looked + len(names) > MOST_STREAMS:
                names, note = names[: MOST_STREAMS - looked], f"only the first {MOST_STREAMS} streams were looked at"
            looked += len(names)
            streams += [row for name in names if (row := _stream(manager, scope, name)) is not None]
            groups += _groups(manager, scope)
        except NotFoundError:
            continue  # deleted meanwhile
    return Picture(
        at_ms=time.time_ns() // 1_000_000,
        source=controller,
        status="UP",
        ill=[],
        server={"streams": looked},
        servers=[],
        streams=_by_rate(streams),
        groups=_by_lag(groups),
        note=note or "without the REST port neither the server's health nor its process can be seen",
    )


def _servers(client: RestClient) -> list[dict[str, Any]]:
    """Those of a cluster; none outside one."""
    from nadi.observe.cluster import ClusterReport

    try:
        report = client.asked("GET", f"{client.first}/v1/cluster", ClusterReport)
    except (NotFoundError, ConflictError):
        return []
    return [
        {
            "server": one.id,
            "state": one.state,
            "containers": len(one.containers),
            "bytes/s": round(one.bytes_per_s),
            "controller": one.controller,
        }
        for one in report.servers
    ]


def _stream(manager: StreamManager, scope: str, stream: str) -> dict[str, Any] | None:
    try:
        loads = manager.segment_loads(scope, stream)
    except NotFoundError:
        return None
    return {
        "stream": f"{scope}/{stream}",
        "segments": len(loads),
        "events/s": round(sum(load.events_per_s[1] for load in loads)),
        "bytes/s": round(sum(load.bytes_per_s[1] for load in loads)),
        "kept bytes": None,
        "hot keys": sum(load.hot_key is not None for load in loads),
    }


def _groups(manager: StreamManager, scope: str) -> list[dict[str, Any]]:
    found = manager.reader_group_manager(scope)
    rows = []
    for group in found.list_reader_groups():
        try:
            lags = found.lag(group)
        except NotFoundError:
            continue  # deleted meanwhile
        rows += [
            {
                "group": f"{scope}/{group}",
                "stream": lag.stream,
                "bytes": lag.bytes_behind,
                "events": lag.events_behind,
                "seconds": lag.seconds_behind,
                "segments": lag.segments,
                "unassigned": lag.unassigned,
                "readers": lag.readers,
            }
            for lag in lags
        ]
    return rows


def _by_rate(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (-(row["bytes/s"] or 0), row["stream"]))


def _by_lag(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (-(row["bytes"] or 0), row["group"], row["stream"]))


def _leaves(one: Component) -> list[Component]:
    return [leaf for child in one.children.values() for leaf in _leaves(child)] if one.children else [one]


def _number(value: float) -> float | int:
    return round(value) if value == round(value) or value >= 10 else round(value, 1)
