"""Folders of shards that are to be stored, with whose they are; and whether an index is gone for good.

An index has its definition before its label, and its label before shards; and a definition that is gone never comes
back, for another of the stream has another id, and so another folder. So what a labelled folder has is nobody's once
its definition is seen to be missing.
"""

from __future__ import annotations

import asyncio
import time

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.errors import InvalidArgumentError, ProtocolError, ScopeNotFoundError, UnavailableError
from nadi.limits import SEARCH_LOOK_S
from nadi.model.reports import IDENTITY, IdentityReport
from nadi.search.definition import Definition, Definitions
from nadi.search.missing import IndexNotFoundError
from nadi.search.shards.objects import Label, Shards, open_shards

_UNLABELLED = "it has no label: an earlier nadi made it, and an indexer that starts will label it if it is in use"


def why_kept(label: Label | None, server: str | None) -> str:
    """Why no shard of a folder with that label, which no definition or manifest names, may be deleted by who asks that
    server; "" if it may be. What the server knows of shards says nothing of another server's."""
    if label is None:
        return _UNLABELLED
    return "" if label.server == server else "it is another server's"


async def identity(manager: StreamManager) -> str | None:
    """The server's, or the cluster's; None of one of an earlier nadi, which has none."""
    try:
        (found,) = await stores_of(manager).controller.report("", "", IDENTITY, IdentityReport)
    except InvalidArgumentError:
        return None
    return found.id


async def open_labelled(manager: StreamManager, scope: str, definition: Definition) -> Shards:
    """The index's shards, for who stores some. Errors: see `open_shards`."""
    shards = await open_shards(definition.url, scope, definition.stream, definition.id)
    try:
        server = await identity(manager)
        if server is not None:
            await shards.label(Label(server, scope, definition.stream, definition.id))
    except BaseException:
        await shards.close()
        raise
    return shards


async def delete_if_gone(manager: StreamManager, shards: Shards, within_s: float) -> bool:
    """Delete all shards of an index that went with its scope, or goes within some time, for its stream went before; and
    return whether it did. One that somebody drops is left to that."""
    until = time.monotonic() + within_s
    label = await shards.labelled() or shards.own  # another indexer of it may have deleted all before
    if label is None or why_kept(label, await identity(manager)):
        return False
    while True:
        if await is_gone(manager, label):
            await shards.delete_all()
            return True
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(SEARCH_LOOK_S)


async def is_gone(manager: StreamManager, label: Label) -> bool:
    """Whether the index isn't defined any more, at the label's server. Of one whose definition can't be read, that
    isn't known. UnavailableError: another server answers by now, which knows nothing of it."""
    if await _is_defined(Definitions(manager, label.scope), label):
        return False
    if await identity(manager) != label.server:
        raise UnavailableError("another server has begun to answer at this address: which indexes are gone isn't known")
    return True


async def _is_defined(definitions: Definitions, label: Label) -> bool:
    try:
        return (await definitions.catalog.get(label.stream)).id == label.id
    except (IndexNotFoundError, ScopeNotFoundError):
        return False
    except ProtocolError:
        pass
    try:
        place, _ = await definitions.place(label.stream)
    except IndexNotFoundError:  # dropped meanwhile
        return False
    return place is None or place.id == label.id
