"""What search keeps in a scope, and how far it is. Whoever may read a stream is told; no index is opened for it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from starlette.responses import Response

from nadi.access.names import Act
from nadi.access.permissions import Permission
from nadi.controller.access import shows
from nadi.controller.rest.endpoint import Call, on_scope, on_stream, reply
from nadi.limits import REST_STANDING_QUERIES
from nadi.web import bodies
from nadi.web.clients import through_client
from nadi.web.places import SCOPE, STREAM

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager


@through_client("GET", SCOPE + "/searched", on_scope(Permission.READ), list[bodies.SearchKept])
async def searched(call: Call, manager: StreamManager) -> Response:
    """List the streams of a scope that have a search index, or standing queries."""
    from nadi.search.definition import Definitions
    from nadi.search.standing.records import sets_of

    definitions = Definitions(manager, call.scope)
    (indexes, no_indexes), (sets, no_sets) = await definitions.catalog.all(), await sets_of(definitions).all()
    indexed = {stream for stream, one in indexes.items() if not one.is_dropped}
    indexed |= {one.name for one in no_indexes}  # what is wrong with these is told by who is asked for one
    matched = {*sets, *(one.name for one in no_sets)}
    names = sorted(name for name in indexed | matched if shows(call.caller, call.scope, name))
    return reply([bodies.SearchKept(name, name in indexed, name in matched) for name in names])


@through_client("GET", STREAM + "/search/index", on_stream(Act.READ), bodies.SearchIndex)
async def index(call: Call, manager: StreamManager) -> Response:
    """Show a stream's search index, and how far it is."""
    from nadi.search.catalog import Indexes

    scope, stream = call.stream
    found = await Indexes(manager, scope).status(stream)
    fields = [bodies.SearchField(one.name, one.kind, found.having[one.name]) for one in found.definition.fields]
    return reply(
        bodies.SearchIndex(
            found.definition.format,
            fields,
            found.definition.is_stopped,
            found.indexed,
            found.unfit,
            found.gaps,
            found.past_bytes,
            found.behind_bytes,
            len(found.indexers),
        )
    )


@through_client("GET", STREAM + "/search/standing", on_stream(Act.READ), bodies.StandingQueriesSeen)
async def standing(call: Call, manager: StreamManager) -> Response:
    """Show a stream's standing queries, and how far it is matched with them."""
    from nadi.search.standing.catalog import StandingQueries

    scope, stream = call.stream
    queries = StandingQueries(manager, scope)
    found = await queries.status(stream)
    first = islice(await queries.list(stream), REST_STANDING_QUERIES)
    return reply(
        bodies.StandingQueriesSeen(
            found.definition.hits,
            found.queries,
            found.catching_up,
            found.definition.is_stopped,
            found.events,
            found.hits,
            found.unfit,
            found.gaps,
            found.behind_bytes,
            len(found.matchers),
            [bodies.StandingQuerySeen(one.name, one.text, one.created_ms) for one in first],
        )
    )


BOUND = (searched, index, standing)
