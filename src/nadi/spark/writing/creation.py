"""Making the stream that is to be written, where the options allow that."""

from __future__ import annotations

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.errors import StreamNotFoundError
from nadi.spark.options.creation import Creation


async def ensure_stream(manager: StreamManager, scope: str, stream: str, creation: Creation) -> None:
    """Have the stream: it is there, or is made now. StreamNotFoundError, ScopeNotFoundError if it may not be."""
    if await stores_of(manager).controller.stream_exists(scope, stream):
        return
    if creation.scope:
        await manager.create_scope(scope)
    if not creation.stream:
        raise StreamNotFoundError(scope, stream)
    await manager.create_stream(scope, stream, scaling=creation.scaling, retention=creation.retention)
