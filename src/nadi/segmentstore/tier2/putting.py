"""Putting a chunk into a store that is elsewhere: once, under a name that was free; and what became of it if the store
refuses, for that may be one's own earlier try, or nobody's at all (`engines.outcomes`).
"""

from __future__ import annotations

from collections.abc import Sequence

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import ObjectStore

from nadi.engines.failures import FOREIGN, told
from nadi.engines.outcomes import ContradictionError
from nadi.errors import UnavailableError
from nadi.wire.fields import Buffer


async def put_new(store: ObjectStore, name: str, parts: Sequence[Buffer], secrets: tuple[str, ...]) -> None:
    """Store `parts`, end to end, if nothing has the name; they are durable when this returns.

    Raises:
        StorageFullError, UnavailableError: it isn't known whether they are stored, or something else has the name.
    """
    problem: UnavailableError
    try:
        # an iterator: obstore puts them together in a thread of its own, while the loop continues
        await obstore.put_async(store, name, iter(parts), mode="create", use_multipart=False)
        return
    except (AlreadyExistsError, PreconditionError):
        is_refused = True
    except FOREIGN as error:
        is_refused, problem = False, told(f"store {name}", error, secrets)
    if is_refused:
        there = await _found(store, name, secrets)
        if there is not None and there == b"".join(parts):
            return
        if there is None:
            problem = ContradictionError(f"{name} could not be stored in tier 2, though nothing is there: tried again")
        else:
            problem = UnavailableError(
                f"tier 2 has another {name}: another server writes there, and each needs a prefix of its own"
            )
    raise problem  # here, so that it has no context: its text may have credentials


async def put_over(store: ObjectStore, name: str, parts: Sequence[Buffer], secrets: tuple[str, ...]) -> None:
    """Store `parts`, end to end, whatever has the name now. Raises: as `put_new`."""
    try:
        await obstore.put_async(store, name, iter(parts), mode="overwrite", use_multipart=False)
        return
    except FOREIGN as error:
        problem = told(f"store {name}", error, secrets)
    raise problem


async def _found(store: ObjectStore, name: str, secrets: tuple[str, ...]) -> memoryview | None:
    try:
        return memoryview(await (await obstore.get_async(store, name)).bytes_async())
    except FileNotFoundError:
        return None
    except FOREIGN as error:
        problem = told(f"read {name}", error, secrets)
    raise problem
