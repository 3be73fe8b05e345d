"""What clients keep in a scope by name and can't be read, which the lists leave out: damaged, or of a newer nadi."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from nadi.access.permissions import Permission
from nadi.controller.access import shows
from nadi.controller.rest.endpoint import Call, on_scope, reply
from nadi.web import bodies
from nadi.web.clients import through_client
from nadi.web.places import SCOPE

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager


@through_client("GET", SCOPE + "/unreadable", on_scope(Permission.READ), list[bodies.UnreadableSeen])
async def unreadable(call: Call, manager: StreamManager) -> Response:
    """List what a scope has under a name that can't be read: what is wrong with it, and what to do."""
    from nadi.search.definition import Definitions
    from nadi.search.standing.records import sets_of

    scope, definitions = call.scope, Definitions(manager, call.scope)
    by_name = {
        "bookmark": await manager.bookmarks(scope).unreadable(),
        "slice": await manager.slices(scope).unreadable(),
        "stream table": await manager.stream_tables(scope).unreadable(),
    }
    by_stream = {
        "search index": (await definitions.catalog.all())[1],
        "standing queries": (await sets_of(definitions).all())[1],
    }
    seen = {kind: [one for one in found if shows(call.caller, scope, one.name)] for kind, found in by_stream.items()}
    return reply(
        [
            bodies.UnreadableSeen(kind, one.name, one.problem)
            for kind, found in (by_name | seen).items()
            for one in found
        ]
    )


BOUND = (unreadable,)
