"""What became of a call: an engine or a registry may take a caller's own write for another's, or refuse one though
nothing is there. So whoever is refused reads what is there. `stored` and `was_set` make one try, and may be called
again with the same values, which nobody else writes, until they give an answer; `…_patiently` does so for a server
that starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nadi.backoff import Backoff
from nadi.errors import StoreError, UnavailableError
from nadi.object_log.engine import LogEngine, Registry, VersionedValue
from nadi.object_log.failures import RefusedError
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

T = TypeVar("T")
PATIENCE_S = 30.0  # for one thing
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 3.0


async def patiently(what: str, work: Callable[[], Awaitable[T]], runtime: Runtime) -> T:
    """What may be repeated, until there is an answer. what: as in "the store can't list what it holds". StoreError: the
    store refuses, or contradicts itself for `PATIENCE_S`. UnavailableError: it gives no answer for so long."""
    until = runtime.monotonic() + PATIENCE_S
    backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S, sleep=runtime.sleep, chance=runtime.chance)
    while True:
        try:
            return await work()
        except RefusedError as error:
            raise StoreError(str(error)) from None
        except ContradictionError:
            if runtime.monotonic() >= until:
                raise StoreError(
                    f"the store can't {what}: for {PATIENCE_S:.0f} s its answers have contradicted each other, as "
                    "those of a store that forgets what it stored, or compares it wrongly: use another store"
                ) from None
        except UnavailableError:
            if runtime.monotonic() >= until:
                raise
        await backoff.pause()


async def stored_patiently(engine: LogEngine, name: str, body: bytes, runtime: Runtime) -> tuple[bool, bytes]:
    """Whether `body`, which nobody else stores, is what the name has; and what it has. Errors: as `patiently`."""
    there = await patiently(f"store {name}", lambda: stored(engine, name, [body]), runtime)
    return (True, body) if there is None else (False, bytes(there))


async def was_set_patiently(
    registry: Registry, name: str, value: bytes, version: str | None, runtime: Runtime
) -> VersionedValue | None:
    """`was_set`, until there is an answer. Errors: as `patiently`."""
    return await patiently(f"set {name}", lambda: was_set(registry, name, value, version), runtime)


class ContradictionError(UnavailableError):
    """What the store refuses and what it shows don't go together; so it is now and then while others store, too."""


async def stored(engine: LogEngine, name: str, parts: Sequence[Buffer]) -> memoryview | None:
    """None: `parts`, end to end, are what the name has, durably; else what somebody else has stored there first.
    UnavailableError: it isn't known."""
    if await engine.create(name, parts):
        return None
    there = await engine.get(name)
    if there is None:
        raise ContradictionError(f"{name} could not be stored, though nothing is there")
    return None if there == b"".join(parts) else there


async def was_set(registry: Registry, name: str, value: bytes, version: str | None) -> VersionedValue | None:
    """The entry if `value` was set, by this try or an earlier one; None if the name has another version by now.
    UnavailableError: it isn't known."""
    new = await registry.compare_and_set(name, value, version)
    if new is not None:
        return VersionedValue(value, new)
    entry = await registry.get(name)
    if entry is not None and entry.value == value:
        return entry
    if (entry.version if entry is not None else None) != version:
        return None
    raise ContradictionError(f"{name} could not be set, though it has the version that was asked for")
