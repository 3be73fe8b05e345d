"""How a stream was scaled, as REST reports it: its epochs within a time range, each with its segments."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from starlette.responses import Response

from nadi.access.names import Act
from nadi.controller.rest.bodies import ListedSegment, ScaledSegment, ScaleMetadata
from nadi.controller.rest.endpoint import STREAM, Call, Parameter, endpoint, on_stream
from nadi.controller.rest.replies import reply, stream_array
from nadi.controller.state.history import History
from nadi.errors import InvalidArgumentError
from nadi.model.reports import LOAD, SCALING, LoadReport, ScalingReport
from nadi.model.segments import share_keys
from nadi.naming import segment_epoch, segment_number

_TIME_MAX_MS = (1 << 63) - 1
_TIME = {"type": "integer", "minimum": 0, "maximum": _TIME_MAX_MS}
_EPOCHS_A_PAGE = 16
_MILLISECONDS = re.compile(r"[0-9]{1,19}", re.ASCII)


@endpoint(
    "GET",
    STREAM + "/scaling-events",
    on_stream(Act.LOOK),
    list[ScaleMetadata],
    codes={400: "The time is missing, or no time."},
    query=(
        Parameter("from", "Milliseconds since 1970.", _TIME, required=True),
        Parameter("to", "Milliseconds since 1970, at or after `from`.", _TIME, required=True),
    ),
)
async def scaling_events(call: Call) -> Response:
    """List a stream's epochs that began in a time, after the one in force at its start."""
    start_ms, end_ms = _time(call, "from"), _time(call, "to")
    if start_ms > end_ms:
        raise InvalidArgumentError("from lies after to: swap them")
    history = await call.controller.history(call.stream)

    async def pages() -> AsyncIterator[list[ScaleMetadata]]:
        epochs = epochs_within(history, start_ms, end_ms)
        for begin in range(0, len(epochs), _EPOCHS_A_PAGE):
            yield [_metadata(history, epoch) for epoch in epochs[begin : begin + _EPOCHS_A_PAGE]]

    return await stream_array(pages(), call.page)


@endpoint("GET", STREAM + "/scaling-log", on_stream(Act.LOOK), list[ScalingReport])
async def scaling_log(call: Call) -> Response:
    """List what was decided about a stream's segments by its policy and load, and why."""

    async def pages() -> AsyncIterator[list[ScalingReport]]:
        token = ""
        while True:
            page, token = await call.controller.report(call.stream, SCALING, token)
            yield list(page)
            if not token:
                return

    await call.controller.stream(call.stream)
    return await stream_array(pages(), call.page)


@endpoint("GET", STREAM + "/load", on_stream(Act.LOOK), list[LoadReport])
async def load(call: Call) -> Response:
    """List what passes into a stream's current segments now."""
    records, _ = await call.controller.report(call.stream, LOAD)
    return reply(list(records))


def _time(call: Call, name: str) -> int:
    text = call.request.query_params.get(name)
    if text is None:
        raise InvalidArgumentError(f"the query needs {name}: a time in milliseconds since 1970")
    if not _MILLISECONDS.fullmatch(text) or int(text) > _TIME_MAX_MS:
        raise InvalidArgumentError(f"{name} is {text[:40]!r}: give milliseconds since 1970, 0 or more")
    return int(text)


def epochs_within(history: History, start_ms: int, end_ms: int) -> range:
    """The epoch in force at the start of the range, then those that started within it."""
    at_start = history.epoch_at(start_ms - 1)
    at_end = history.epoch_at(end_ms)
    return range(at_start, at_end + (history.change(at_end).created_ms <= end_ms))


def _metadata(history: History, epoch: int) -> ScaleMetadata:
    change, segments = history.change(epoch), history.epoch(epoch)
    removed = [history.segments[segment] for segment in change.removed]
    splits = sum(sum(share_keys(old, new) for new in change.added) > 1 for old in removed)
    merges = sum(sum(share_keys(old, new) for old in removed) > 1 for new in change.added)

    return ScaleMetadata(
        change.created_ms,
        [
            ScaledSegment(segment_number(s.id), segment_epoch(s.id), history.began_ms(s.id), s.low, s.high)
            for s in segments
        ],
        [ListedSegment(segment_number(s.id), history.began_ms(s.id), s.low, s.high) for s in segments],
        splits,
        merges,
    )
