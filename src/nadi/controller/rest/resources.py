"""Scopes, streams, their scaling, and reader groups over REST.

`onlineReaderIds` is always empty: the ids are stored in the group's state stream, in the Java client's serialization.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from nadi.access.names import Act
from nadi.access.permissions import Permission, reader_group_resource, scope_resource
from nadi.controller.access import shows
from nadi.controller.rest import bodies
from nadi.controller.rest.endpoint import (
    SCOPE,
    STREAM,
    Parameter,
    RestCall,
    endpoint,
    endpoints_of,
    on_cluster,
    on_reader_group,
    on_scope,
    on_stream,
    stream_array,
    stream_list,
)
from nadi.controller.state.history import EpochHistory
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamRecord
from nadi.errors import InvalidArgumentError, ScopeNotFoundError
from nadi.limits import LAG_REPLACED, REST_LIST_PAGE
from nadi.model.quotas import Quota, QuotaLimits
from nadi.model.reports import (
    GROUP_LAG,
    LOAD,
    SCALING,
    STREAM_LAG,
    GroupLagReport,
    LoadReport,
    RetentionReport,
    ScalingReport,
    StreamLagReport,
)
from nadi.model.segments import share_keys
from nadi.naming import check_name, segment_epoch, segment_number


@endpoint("GET", "/v1/scopes", on_cluster(Permission.READ), bodies.ScopesList)
async def list_scopes(call: RestCall) -> Response:
    """List the scopes."""

    def shown(names: Sequence[str]) -> list[bodies.ScopeProperty]:
        return [bodies.ScopeProperty(name) for name in names if call.shows(scope_resource(name))]

    return await stream_list("scopes", call.controller.list_scopes, shown, call.page)


@endpoint(
    "POST",
    "/v1/scopes",
    on_cluster(Permission.READ_UPDATE),
    bodies.ScopeProperty,
    status=201,
    body=bodies.CreateScope,
    codes={409: "The scope exists already."},
    action="scope.create",
)
async def create_scope(call: RestCall) -> Any:
    """Create a scope."""
    name = call.body.scopeName
    check_name("scope", name)
    await call.controller.create_scope(name)
    return bodies.ScopeProperty(name)


@endpoint("GET", SCOPE, on_scope(Permission.READ), bodies.ScopeProperty)
async def show_scope(call: RestCall) -> Any:
    """Show a scope."""
    if not await call.controller.scope_exists(call.scope):
        raise ScopeNotFoundError(call.scope)
    return bodies.ScopeProperty(call.scope)


@endpoint(
    "DELETE",
    SCOPE,
    on_cluster(Permission.READ_UPDATE),
    status=204,
    codes={412: "The scope is not empty."},
    action="scope.delete",
)
async def delete_scope(call: RestCall) -> None:
    """Delete an empty scope."""
    await call.controller.delete_scope(call.scope)


SHOW_INTERNAL = "showInternalStreams"
BY_TAG = "tag"


@endpoint(
    "GET",
    SCOPE + "/streams",
    on_scope(Permission.READ),
    bodies.StreamsList,
    codes={400: "The filter is unknown."},
    query=(
        Parameter("filter_type", "Which streams to list.", {"type": "string", "enum": [SHOW_INTERNAL, BY_TAG]}),
        Parameter("filter_value", "The tag to filter by.", {"type": "string"}),
    ),
)
async def list_streams(call: RestCall) -> Response:
    """List a scope's streams: users' streams, internal ones, or those with a tag."""
    is_selected = _filter(call)

    def shown(streams: Sequence[tuple[str, StreamRecord]]) -> list[bodies.StreamProperty]:
        return [
            bodies.stream_property(StreamName(call.scope, name), stream.config)
            for name, stream in streams
            if is_selected(name, stream) and shows(call.caller, call.scope, name)
        ]

    fetch = partial(call.controller.list_stream_records, call.scope, count=REST_LIST_PAGE)
    return await stream_list("streams", fetch, shown, call.page)


def _filter(call: RestCall) -> Callable[[str, StreamRecord], bool]:
    """Return the predicate that the query selects; by default, streams that users created."""
    kind, tag = call.query("filter_type"), call.query("filter_value")
    if kind not in (None, SHOW_INTERNAL, BY_TAG):
        raise InvalidArgumentError(f"filter_type must be {SHOW_INTERNAL} or {BY_TAG}, not {kind[:40]!r}")
    if kind == BY_TAG and not tag:
        raise InvalidArgumentError("filter_type=tag lacks the tag: give it as filter_value")
    is_tagged = kind == BY_TAG
    return lambda name, stream: (
        name.startswith("_") == (kind == SHOW_INTERNAL) and (not is_tagged or tag in stream.config.tags)
    )


@endpoint(
    "POST",
    SCOPE + "/streams",
    on_scope(Permission.READ_UPDATE),
    bodies.StreamProperty,
    status=201,
    body=bodies.CreateStream,
    codes={409: "The stream exists already."},
    action="stream.create",
)
async def create_stream(call: RestCall) -> Any:
    """Create a stream."""
    name = StreamName(call.scope, call.body.streamName)
    check_name("stream", name.stream)
    config = bodies.config_of(call.body)
    await call.controller.create_stream(name, config)
    return bodies.stream_property(name, config)


@endpoint("GET", STREAM, on_stream(Act.INSPECT), bodies.StreamProperty)
async def show_stream(call: RestCall) -> Any:
    """Show a stream's configuration."""
    return bodies.stream_property(call.stream, (await call.controller.stream(call.stream)).config)


@endpoint(
    "PUT",
    STREAM,
    on_stream(Act.CHANGE),
    bodies.StreamProperty,
    body=bodies.UpdateStream,
    codes={409: "Another change of the stream is in progress.", 500: "The stream is sealed."},
    action="stream.update",
)
async def update_stream(call: RestCall) -> Any:
    """Replace a stream's complete configuration."""
    config = bodies.config_of(call.body)
    await call.controller.update_stream(call.stream, config)
    return bodies.stream_property(call.stream, config)


@endpoint("GET", STREAM + "/retention", on_stream(Act.CHANGE), RetentionReport)
async def show_retention(call: RestCall) -> Any:
    """Show what a stream retains, and what prevents its retention policy from truncating further."""
    return await call.controller.retention.describe(call.stream)


@endpoint(
    "DELETE", STREAM, on_stream(Act.END), status=204, codes={412: "The stream is not sealed."}, action="stream.delete"
)
async def delete_stream(call: RestCall) -> None:
    """Delete a sealed stream."""
    await call.controller.delete_stream(call.stream)


@endpoint(
    "PUT",
    STREAM + "/state",
    on_stream(Act.END),
    bodies.StreamStateBody,
    body=bodies.StreamStateBody,
    action="stream.seal",
)
async def change_state(call: RestCall) -> Any:
    """Seal a stream."""  # the only state change that clients may request
    await call.controller.seal_stream(call.stream)
    return call.body


async def reports(call: RestCall, kind: str) -> Response:
    """Stream all pages of the stream's report of that kind."""

    async def pages() -> AsyncIterator[Sequence[Any]]:
        token: str | None = None
        while token != "":
            page, token = await call.controller.report(call.stream, kind, token or "")
            yield page

    await call.controller.stream(call.stream)
    return await stream_array(pages(), call.page)


_TIME_MAX_MS = (1 << 63) - 1
_TIME = {"type": "integer", "minimum": 0, "maximum": _TIME_MAX_MS}
_EPOCHS_A_PAGE = 16
_MILLISECONDS = re.compile(r"[0-9]{1,19}", re.ASCII)


@endpoint(
    "GET",
    STREAM + "/scaling-events",
    on_stream(Act.INSPECT),
    list[bodies.ScaleMetadata],
    codes={400: "The time is missing or malformed."},
    query=(
        Parameter("from", "Milliseconds since 1970.", _TIME, required=True),
        Parameter("to", "Milliseconds since 1970, at or after `from`.", _TIME, required=True),
    ),
)
async def scaling_events(call: RestCall) -> Response:
    """List the epoch in force at the start of a time range, and the epochs that began within it."""
    start_ms, end_ms = _time(call, "from"), _time(call, "to")
    if start_ms > end_ms:
        raise InvalidArgumentError("from is after to: swap them")
    history = await call.controller.history(call.stream)

    async def pages() -> AsyncIterator[list[bodies.ScaleMetadata]]:
        # the epoch in force at the start of the range, then those that started within it
        first, last = history.epoch_at(start_ms - 1), history.epoch_at(end_ms)
        epochs = range(first, last + (history.change(last).created_ms <= end_ms))
        for begin in range(0, len(epochs), _EPOCHS_A_PAGE):
            yield [_metadata(history, epoch) for epoch in epochs[begin : begin + _EPOCHS_A_PAGE]]

    return await stream_array(pages(), call.page)


@endpoint("GET", STREAM + "/scaling-log", on_stream(Act.INSPECT), list[ScalingReport])
async def scaling_log(call: RestCall) -> Response:
    """List the automatic scaling decisions for a stream, with their reasons."""
    return await reports(call, SCALING)


@endpoint("GET", STREAM + "/load", on_stream(Act.INSPECT), list[LoadReport])
async def load(call: RestCall) -> Any:
    """List the current load of a stream's segments."""
    records, _ = await call.controller.report(call.stream, LOAD)
    return list(records)


def _time(call: RestCall, name: str) -> int:
    text = call.query(name)
    if text is None:
        raise InvalidArgumentError(f"the query lacks {name}: give a time in milliseconds since 1970")
    if not _MILLISECONDS.fullmatch(text) or int(text) > _TIME_MAX_MS:
        raise InvalidArgumentError(f"{name} is {text[:40]!r}: give milliseconds since 1970, at least 0")
    return int(text)


def _metadata(history: EpochHistory, epoch: int) -> bodies.ScaleMetadata:
    change, segments = history.change(epoch), history.epoch(epoch)
    removed = [history.segments[segment] for segment in change.removed]
    splits = sum(sum(share_keys(old, new) for new in change.added) > 1 for old in removed)
    merges = sum(sum(share_keys(old, new) for old in removed) > 1 for new in change.added)

    return bodies.ScaleMetadata(
        change.created_ms,
        [
            bodies.ScaledSegment(segment_number(s.id), segment_epoch(s.id), history.began_ms(s.id), s.low, s.high)
            for s in segments
        ],
        [bodies.ListedSegment(segment_number(s.id), history.began_ms(s.id), s.low, s.high) for s in segments],
        splits,
        merges,
    )


_GROUP = SCOPE + "/readergroups/{readerGroupName}"


@endpoint("GET", SCOPE + "/readergroups", on_scope(Permission.READ), bodies.ReaderGroupsList)
async def list_reader_groups(call: RestCall) -> Response:
    """List a scope's reader groups."""

    def shown(groups: Sequence[str]) -> list[bodies.ReaderGroupName]:
        return [
            bodies.ReaderGroupName(group) for group in groups if call.shows(reader_group_resource(call.scope, group))
        ]

    fetch = partial(call.controller.list_reader_groups, call.scope, count=REST_LIST_PAGE)
    return await stream_list("readerGroups", fetch, shown, call.page)


@endpoint("GET", _GROUP, on_reader_group(Permission.READ), bodies.ReaderGroupProperty)
async def show_reader_group(call: RestCall) -> Any:
    """Show a reader group."""
    config = (await call.controller.reader_group(call.group)).config
    streams = sorted(stream.rpartition("/")[2] for stream in config.starts)
    return bodies.ReaderGroupProperty(*call.group, streams, [])


@endpoint("GET", _GROUP + "/lag", on_reader_group(Permission.READ), list[GroupLagReport])
async def show_lag(call: RestCall) -> Any:
    """Show a reader group's lag in each of its streams."""
    await call.controller.reader_group(call.group)
    records, _ = await call.controller.report(call.group.stream, GROUP_LAG)
    return list(records)


@endpoint("GET", STREAM + "/lag", on_stream(Act.CHANGE), StreamLagReport)
async def show_stream_lag(call: RestCall) -> Any:
    """Show a stream's segments, their load, and the lag of the reader groups that read it."""
    controller, stream = call.controller, call.stream
    groups, _ = await controller.report(stream, STREAM_LAG)
    loads, _ = await controller.report(stream, LOAD)
    replaced = await controller.replaced_segments(stream, LAG_REPLACED)
    return StreamLagReport(stream.key, list(loads), replaced, list(groups))


@endpoint("DELETE", _GROUP, on_scope(Permission.READ_UPDATE), status=204, action="group.delete")
async def delete_reader_group(call: RestCall) -> None:
    """Delete a reader group and its state."""
    group = await call.controller.reader_group(call.group)
    await call.controller.delete_reader_group(call.group, group.group_id)


QUOTAS = "/v1/quotas"
_QUOTA = QUOTAS + "/{kind}/{name}"


def _owner(call: RestCall) -> str:
    return f"{call.part('kind')}/{call.part('name')}"


@endpoint("GET", QUOTAS, on_cluster(Permission.READ), list[Quota])
async def list_quotas(call: RestCall) -> Any:
    """List the quotas of scopes and users, with their use."""
    return await call.controller.quotas.list()


_NO_OWNER = {400: "The path names neither a scope nor a user."}


@endpoint("GET", _QUOTA, on_cluster(Permission.READ), Quota, codes=_NO_OWNER)
async def show_quota(call: RestCall) -> Any:
    """Show a quota with its use; the path names it as scope/NAME or user/NAME."""
    return await call.controller.quotas.get(_owner(call))


@endpoint(
    "POST",
    _QUOTA,
    on_cluster(Permission.READ_UPDATE),
    Quota,
    status=201,
    body=QuotaLimits,
    codes={409: "The quota exists already."},
    action="quota.change",
)
async def create_quota(call: RestCall) -> Any:
    """Create a quota."""
    return await call.controller.quotas.put(_owner(call), call.body, creates=True)


@endpoint("PUT", _QUOTA, on_cluster(Permission.READ_UPDATE), Quota, body=QuotaLimits, action="quota.change")
async def update_quota(call: RestCall) -> Any:
    """Replace all limits of a quota."""
    return await call.controller.quotas.put(_owner(call), call.body, creates=False)


@endpoint("DELETE", _QUOTA, on_cluster(Permission.READ_UPDATE), status=204, codes=_NO_OWNER, action="quota.change")
async def delete_quota(call: RestCall) -> None:
    """Delete a quota."""
    await call.controller.quotas.delete(_owner(call))


ENDPOINTS = endpoints_of(globals())
