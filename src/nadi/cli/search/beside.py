"""What search keeps of a stream, which goes with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nadi.errors import NotFoundError, PermissionDeniedError, ProtocolError

if TYPE_CHECKING:
    from nadi.client import StreamManager


def beside_stream(manager: StreamManager, scope: str, stream: str) -> dict[str, Callable[[], None]]:
    """In words, and what deletes it."""
    from nadi.search import indexes, standing_queries

    found: dict[str, Callable[[], None]] = {}
    for name, catalog in (
        ("its search index", indexes(manager, scope)),
        ("its standing queries", standing_queries(manager, scope)),
    ):
        try:
            catalog.get(stream)
        except ProtocolError:  # of what can't be read: it goes all the same
            pass
        except (NotFoundError, PermissionDeniedError):  # who may not see it doesn't delete it either
            continue
        found[name] = partial(catalog.drop, stream)
    return found


def beside_scope(manager: StreamManager, scope: str, *, of_streams: bool) -> list[Callable[[], None]]:
    """What deletes the search indexes of a scope, whose shards nobody would know after it. of_streams: also of streams
    that are there."""
    from nadi.search import indexes

    catalog = indexes(manager, scope)
    try:
        there = set() if of_streams else set(manager.list_streams(scope))
        found, unreadable = catalog.list_with_unreadable()
        streams = [*(one.stream for one in found), *(one.name for one in unreadable)]
        return [partial(catalog.drop, stream) for stream in streams if stream not in there]
    except (NotFoundError, PermissionDeniedError):
        return []
