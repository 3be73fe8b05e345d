"""Putting a chunk into a place that is elsewhere: once, under a name that was free; and what became of it if the place
refuses, for that may be one's own earlier try, or nobody's at all (`engines.outcomes`).
"""

from __future__ import annotations

from collections.abc import Sequence

from nadi.engines.outcomes import ContradictionError
from nadi.errors import UnavailableError
from nadi.segmentstore.tier2.places.place import Place
from nadi.wire.fields import Buffer


async def put_new(place: Place, name: str, parts: Sequence[Buffer]) -> None:
    """Store `parts`, end to end, if nothing has the name; they are durable when this returns.

    Raises:
        StorageFullError, UnavailableError: it isn't known whether they are stored, or something else has the name.
    """
    if await place.create(name, parts):
        return
    try:
        there = await place.read(name, 0, None)
    except FileNotFoundError:
        raise ContradictionError(
            f"{name} could not be stored in tier 2, though nothing is there: tried again"
        ) from None
    if there != b"".join(parts):
        raise UnavailableError(
            f"tier 2 has another {name}: another server writes there, and each needs a prefix of its own"
        )
