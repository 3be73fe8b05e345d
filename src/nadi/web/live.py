"""Current rates, segments and transactions of streams as the controller knows them, and manual scaling.

In a cluster these requests are forwarded to the server with the active controller, like all requests to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from starlette.responses import Response

from nadi.access.names import Act
from nadi.access.permissions import Permission
from nadi.controller.access import shows
from nadi.controller.rest.endpoint import (
    SCOPE,
    STREAM,
    RestCall,
    endpoint,
    endpoints_of,
    on_cluster,
    on_scope,
    on_stream,
    reply,
    stream_array,
)
from nadi.controller.rest.resources import reports
from nadi.controller.state.records import TxnState
from nadi.controller.transactions.decisions import txn_text
from nadi.errors import ConflictError, ScopeNotFoundError, StreamSealedError
from nadi.limits import REST_LIST_PAGE
from nadi.model.reports import SEGMENTS, SegmentReport
from nadi.web import bodies

_UNFINISHED = (TxnState.OPEN, TxnState.COMMITTING, TxnState.ABORTING)


@endpoint("GET", "/v1/rates", on_cluster(Permission.READ), list[bodies.StreamRateBody])
async def rates(call: RestCall) -> Response:
    """List all streams with their current write rates."""
    return await _rates(call, None)


@endpoint("GET", SCOPE + "/rates", on_scope(Permission.READ), list[bodies.StreamRateBody])
async def rates_of_scope(call: RestCall) -> Response:
    """List a scope's streams with their current write rates."""
    if not await call.controller.scope_exists(call.scope):
        raise ScopeNotFoundError(call.scope)
    return await _rates(call, call.scope)


async def _rates(call: RestCall, scope: str | None) -> Response:
    rates = await call.controller.rates.all()

    async def pages() -> AsyncIterator[list[bodies.StreamRateBody]]:
        for start in range(0, len(rates), REST_LIST_PAGE):
            yield [
                bodies.StreamRateBody(*rate.name, rate.segments, rate.is_sealed, rate.events_per_s, rate.bytes_per_s)
                for rate in rates[start : start + REST_LIST_PAGE]
                if scope in (None, rate.name.scope) and shows(call.caller, *rate.name)
            ]

    return await stream_array(pages(), call.page)


@endpoint("GET", STREAM + "/segments", on_stream(Act.INSPECT), list[SegmentReport])
async def segments(call: RestCall) -> Response:
    """List all segments of a stream, current and past: key range, lifetime and size."""
    return await reports(call, SEGMENTS)


@endpoint("GET", STREAM + "/transactions", on_stream(Act.INSPECT), list[bodies.TransactionBody])
async def transactions(call: RestCall) -> Response:
    """List a stream's transactions: unfinished ones, oldest first, then the most recently ended."""
    name, known = call.stream, call.controller.transactions
    await call.controller.stream(name)
    ended = {txn_text(txn): state for txn, state in await known.completed(name)}
    listed = [
        bodies.TransactionBody(text, state.name, live.created_ms, live.lease_ms)
        for state in _UNFINISHED
        for text, live in known.live(name, state).items()
        if text not in ended
    ]
    listed.sort(key=lambda body: body.created or 0)
    listed += [bodies.TransactionBody(text, state.name, None, None) for text, state in ended.items()]
    return reply(listed)


@endpoint(
    "POST",
    STREAM + "/scale",
    on_stream(Act.CHANGE),
    bodies.Scaling,
    status=202,
    body=bodies.Scale,
    codes={409: "The stream is being scaled or sealed, or a segment is not current."},
)
async def scale(call: RestCall) -> Response:
    """Start to replace segments of a stream by successors that cover the same keys."""
    body: bodies.Scale = call.body
    ranges: Iterable[tuple[float, float]] = ((low, high) for low, high in body.ranges)
    try:
        work = await call.controller.scale(call.stream, body.segments, tuple(ranges))
    except StreamSealedError as error:  # mapped to 500 in Pravega's interface
        raise ConflictError(str(error)) from error
    return reply(bodies.Scaling(work.change.epoch - 1), 202)


ENDPOINTS = endpoints_of(globals())
