"""Resolves the outcome of conditional writes. An engine or a registry may mistake the caller's own write for another's,
or refuse one though nothing is stored; so a refused caller reads back the value.

`stored` and `was_set` make one attempt, and may be repeated with the same values, which must be unique, until they
return. The `…_patiently` functions do so for a starting server.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nadi.backoff import Backoff
from nadi.errors import StoreError, UnavailableError
from nadi.object_log.engine import LogEngine, Registry, VersionedValue
from nadi.object_log.failures import RefusedError
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)

T = TypeVar("T")
PATIENCE_S = 30.0  # for one operation
_WARN_AFTER_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 3.0


async def patiently(what: str, work: Callable[[], Awaitable[T]], runtime: Runtime) -> T:
    """Repeat idempotent work until it returns. what: as in "the store can't list its objects".

    StoreError: the store refuses, or contradicts itself for `PATIENCE_S`. UnavailableError: it doesn't respond for so
    long.
    """
    until, has_warned = runtime.monotonic() + PATIENCE_S, False
    backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S, sleep=runtime.sleep, chance=runtime.chance)
    while True:
        try:
            return await work()
        except RefusedError as error:
            raise StoreError(str(error)) from None
        except ContradictionError:
            if runtime.monotonic() >= until:
                raise StoreError(
                    f"the store can't {what}: its answers have contradicted each other for {PATIENCE_S:.0f} s, so it "
                    "may lose objects or compare them wrongly: use another store"
                ) from None
        except UnavailableError as error:
            remaining_s = until - runtime.monotonic()
            if remaining_s <= 0:
                raise
            if not has_warned and remaining_s <= PATIENCE_S - _WARN_AFTER_S:
                log.warning("%s; retrying for up to %.0f s", error, remaining_s)
                has_warned = True
        await backoff.pause()


async def stored_patiently(engine: LogEngine, name: str, body: bytes, runtime: Runtime) -> tuple[bool, bytes]:
    """Create an object with a unique `body`. Return whether this call did, and the stored bytes. Errors: as
    `patiently`."""
    existing = await patiently(f"store {name}", lambda: stored(engine, name, [body]), runtime)
    return (True, body) if existing is None else (False, bytes(existing))


async def was_set_patiently(
    registry: Registry, name: str, value: bytes, version: str | None, runtime: Runtime
) -> VersionedValue | None:
    """Repeat `was_set` until it returns. Errors: as `patiently`."""
    return await patiently(f"set {name}", lambda: was_set(registry, name, value, version), runtime)


class ContradictionError(UnavailableError):
    """Error for a refusal that doesn't match the stored state, as happens occasionally under concurrent writes."""


async def stored(engine: LogEngine, name: str, parts: Sequence[Buffer]) -> memoryview | None:
    """Create an object from `parts`, end to end. Return None if the name now durably has them, otherwise the bytes that
    another caller stored first. UnavailableError: the outcome is unknown."""
    if await engine.create(name, parts):
        return None
    existing = await engine.get(name)
    if existing is None:
        raise ContradictionError(f"{name} couldn't be stored, though it doesn't exist")
    return None if existing == b"".join(parts) else existing


async def was_set(registry: Registry, name: str, value: bytes, version: str | None) -> VersionedValue | None:
    """Set a value. Return the entry if this attempt or an earlier one set it; None if the name has another version by
    now. UnavailableError: the outcome is unknown."""
    new = await registry.compare_and_set(name, value, version)
    if new is not None:
        return VersionedValue(value, new)
    entry = await registry.get(name)
    if entry is not None and entry.value == value:
        return entry
    if (entry.version if entry is not None else None) != version:
        return None
    raise ContradictionError(f"{name} couldn't be set, though it has the expected version")
