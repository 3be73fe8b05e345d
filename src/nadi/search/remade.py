"""Whether an index is still that of the stream with its name: that may have been deleted, and made anew."""

from __future__ import annotations

from collections.abc import Iterable

from nadi.client.segments.info import what_became_of
from nadi.client.segments.stores import SegmentStores
from nadi.errors import StreamNotFoundError, StreamRemadeError
from nadi.naming import segment_name


def remade(scope: str, stream: str) -> StreamRemadeError:
    return StreamRemadeError(
        scope,
        stream,
        "the search index is the old one's. Delete it (`nadi search delete`), and create it again for the new one",
    )


async def check_same(stores: SegmentStores, scope: str, stream: str, segments: Iterable[int]) -> None:
    """Raise StreamRemadeError, or StreamNotFoundError, if the stream isn't the one that had these segments."""
    newest = max(segments, default=None)
    if newest is None:
        return
    error = await what_became_of(stores, segment_name(scope, stream, newest))
    if isinstance(error, StreamRemadeError):
        raise remade(scope, stream) from error
    if isinstance(error, StreamNotFoundError):
        raise error
