"""What the controller tells of streams as they are now, and scaling: rates, segments, transactions.

In a cluster these are passed on to the server that has the active controller, like all of the controller's.
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
    """List all streams with what passes into them now."""
    return await _rates(call, None)


@endpoint("GET", SCOPE + "/rates", on_scope(Permission.READ), list[bodies.StreamRateBody])
async def rates_of_scope(call: RestCall) -> Response:
    """List a scope's streams with what passes into them now."""
    if not await call.controller.scope_exists(call.scope):
        raise ScopeNotFoundError(call.scope)
    return await _rates(call, call.scope)


async def _rates(call: RestCall, scope: str | None) -> Response:
    found = await call.controller.rates.all()

    async def pages() -> AsyncIterator[list[bodies.StreamRateBody]]:
        for start in range(0, len(found), REST_LIST_PAGE):
            yield [
                bodies.StreamRateBody(*one.name, one.segments, one.is_sealed, one.events_per_s, one.bytes_per_s)
                for one in found[start : start + REST_LIST_PAGE]
                if scope in (None, one.name.scope) and shows(call.caller, *one.name)
            ]

    return await stream_array(pages(), call.page)


@endpoint("GET", STREAM + "/segments", on_stream(Act.LOOK), list[SegmentReport])
async def segments(call: RestCall) -> Response:
    """List all segments that a stream ever had: their keys, when they took events, and how much."""
    return await reports(call, SEGMENTS)


@endpoint("GET", STREAM + "/transactions", on_stream(Act.LOOK), list[bodies.TransactionSeen])
async def transactions(call: RestCall) -> Response:
    """List a stream's transactions: those that aren't finished, oldest first, then those that ended last."""
    name, known = call.stream, call.controller.transactions
    await call.controller.stream(name)
    ended = {txn_text(txn): state for txn, state in await known.completed(name)}
    found = [
        bodies.TransactionSeen(text, state.name, held.created_ms, held.lease_ms)
        for state in _UNFINISHED
        for text, held in known.live(name, state).items()
        if text not in ended
    ]
    found.sort(key=lambda one: one.created or 0)
    found += [bodies.TransactionSeen(text, state.name, None, None) for text, state in ended.items()]
    return reply(found)


@endpoint(
    "POST",
    STREAM + "/scale",
    on_stream(Act.CHANGE),
    bodies.Scaling,
    status=202,
    body=bodies.Scale,
    codes={409: "It is being scaled already or sealed, or a segment is not one of its current ones."},
)
async def scale(call: RestCall) -> Response:
    """Begin to replace some of a stream's segments by others that have the same keys together."""
    body: bodies.Scale = call.body
    ranges: Iterable[tuple[float, float]] = ((low, high) for low, high in body.ranges)
    try:
        work = await call.controller.scale(call.stream, body.segments, tuple(ranges))
    except StreamSealedError as error:  # which is a 500 where Pravega's interface says so
        raise ConflictError(str(error)) from error
    return reply(bodies.Scaling(work.change.epoch - 1), 202)


ENDPOINTS = endpoints_of(globals())
