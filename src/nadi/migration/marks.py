"""The mark in a store that a migration fills, and that isn't a cluster's yet: written once, and with a checksum, as the
marks in folders are (`segmentstore.moved`).
"""

from __future__ import annotations

from nadi.engines.engine import LogEngine
from nadi.engines.identity import MIGRATION
from nadi.engines.outcomes import patiently, stored_patiently
from nadi.errors import StoreError
from nadi.runtime import REAL
from nadi.segmentstore import moved
from nadi.segmentstore.moved import Incoming


async def begun(engine: LogEngine, url: str) -> Incoming | None:
    """What fills the store at that URL; None if nothing does. StoreError: the mark is damaged, or the store refuses."""
    raw = await patiently("read what it holds", lambda: engine.get(MIGRATION), REAL)
    return _decoded(bytes(raw), url) if raw is not None else None


async def begin(engine: LogEngine, url: str, new: Incoming) -> Incoming:
    """What fills the store: that one, if nothing did. StoreError: as `begun`."""
    _, raw = await stored_patiently(engine, MIGRATION, moved.encode(new), REAL)
    return _decoded(raw, url)


async def begin_anew(engine: LogEngine, url: str, new: Incoming) -> None:
    """Likewise, whatever fills it now: by whoever has the turn, and while the store is a cluster's."""
    await clear(engine)
    await begin(engine, url, new)


async def clear(engine: LogEngine) -> None:
    await patiently("delete what isn't needed any more", lambda: engine.delete([MIGRATION]), REAL)


def _decoded(raw: bytes, url: str) -> Incoming:
    try:
        return moved.decode(raw, Incoming)
    except ValueError as error:
        raise StoreError(
            f"{MIGRATION} in {url} is damaged ({error}): it says what this store is being filled from. If the source "
            "refuses to start because its data was moved there, let it have that back with `nadi migrate --undo`; then "
            f"remove all that is in {url}, of which the source has everything, and start the migration again"
        ) from None
