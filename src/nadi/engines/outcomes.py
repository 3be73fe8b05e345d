"""What became of a call: an engine or a registry may take a caller's own write for another's, or refuse one though
nothing is there. So whoever is refused reads what is there. `stored` and `was_set` make one try, and may be called
again with the same values, which nobody else writes, until they give an answer; `…_patiently` does so for a server
that starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nadi.backoff import Backoff
from nadi.engines.engine import Entry, LogEngine, Registry
from nadi.engines.failures import RefusedError
from nadi.errors import StoreError, UnavailableError
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

T = TypeVar("T")
PATIENCE_S = 30.0  # for one thing
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 3.0


class Patience:
    """For one thing that is tried again and again: `pause` raises the last error once it took `PATIENCE_S`."""

    def __init__(self, what: str, runtime: Runtime) -> None:
        self._what, self._runtime = what, runtime
        self._until = runtime.monotonic() + PATIENCE_S
        self._backoff = Backoff(
            first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S, sleep=runtime.sleep, chance=runtime.chance
        )

    async def pause(self, error: UnavailableError | None = None) -> None:
        """Before the next try. error: of this one; None if its answers contradict each other. StoreError: the store
        refuses, or contradicts itself to the end. UnavailableError: it gives no answer."""
        if isinstance(error, RefusedError):
            raise StoreError(str(error)) from None
        if self._runtime.monotonic() >= self._until:
            raise error or StoreError(
                f"the store can't {self._what}: for {PATIENCE_S:.0f} s its answers have contradicted each "
                "other, as those of a store that forgets what it stored, or compares it wrongly: use another store"
            )
        await self._backoff.pause()


async def patiently(what: str, work: Callable[[], Awaitable[T]], runtime: Runtime) -> T:
    """What may be repeated, until there is an answer. Errors: see `Patience.pause`."""
    patience = Patience(what, runtime)
    while True:
        problem: UnavailableError | None
        try:
            return await work()
        except ContradictionError:
            problem = None
        except UnavailableError as error:
            problem = error
        await patience.pause(problem)


async def stored_patiently(engine: LogEngine, name: str, body: bytes, runtime: Runtime) -> tuple[bool, bytes]:
    """Whether `body`, which nobody else stores, is what the name has; and what it has. Errors: see `Patience.pause`."""
    there = await patiently(f"store {name}", lambda: stored(engine, name, [body]), runtime)
    return (True, body) if there is None else (False, bytes(there))


async def was_set_patiently(
    registry: Registry, name: str, value: bytes, version: str | None, runtime: Runtime
) -> Entry | None:
    """`was_set`, until there is an answer. Errors: see `Patience.pause`."""
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


async def was_set(registry: Registry, name: str, value: bytes, version: str | None) -> Entry | None:
    """The entry if `value` was set, by this try or an earlier one; None if the name has another version by now.
    UnavailableError: it isn't known."""
    new = await registry.compare_and_set(name, value, version)
    if new is not None:
        return Entry(value, new)
    entry = await registry.get(name)
    if entry is not None and entry.value == value:
        return entry
    if (entry.version if entry is not None else None) != version:
        return None
    raise ContradictionError(f"{name} could not be set, though it has the version that was asked for")
