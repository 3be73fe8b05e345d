"""What became of a call: one home for the rule that "refused" may be one's own earlier try, or nobody's at all.

An engine or a registry may take a caller's own write for another's, or refuse one though nothing is there. So whoever
is refused reads what is there. Each function makes one try, and may be called again with the same values, which nobody
else writes, until it gives an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from nadi.engines.engine import LogEngine
from nadi.engines.registry import Entry, Registry
from nadi.errors import UnavailableError
from nadi.wire.fields import Buffer


class ContradictionError(UnavailableError):
    """What the store refuses and what it shows don't go together; so it is now and then while others store, too."""


async def stored(engine: LogEngine, name: str, parts: Sequence[Buffer]) -> memoryview | None:
    """None: `parts`, end to end, are what the name has, durably; else what somebody else has stored there first.

    Raises:
        UnavailableError: it isn't known.
    """
    if await engine.create(name, parts):
        return None
    there = await engine.get(name)
    if there is None:
        raise ContradictionError(f"{name} could not be stored, though nothing is there")
    return None if there == b"".join(parts) else there


async def was_set(registry: Registry, name: str, value: bytes, version: str | None) -> Entry | None:
    """The entry if `value` was set, by this try or an earlier one; None if the name has another version by now.

    Raises:
        UnavailableError: it isn't known.
    """
    new = await registry.compare_and_set(name, value, version)
    if new is not None:
        return Entry(value, new)
    entry = await registry.get(name)
    if entry is not None and entry.value == value:
        return entry
    if (entry.version if entry is not None else None) != version:
        return None
    raise ContradictionError(f"{name} could not be set, though it has the version that was asked for")
