"""What a server asks of its store as it starts: with patience for one that is busy, and none for one that refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from nadi.backoff import Backoff
from nadi.engines import outcomes
from nadi.engines.engine import LogEngine
from nadi.engines.failures import RefusedError
from nadi.engines.outcomes import ContradictionError
from nadi.engines.registry import Entry, Registry
from nadi.errors import StoreError, UnavailableError
from nadi.runtime import Runtime

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
        """Before the next try. error: of this one; None if its answers contradict each other.

        StoreError: the store refuses, or contradicts itself to the end. UnavailableError: it gives no answer.
        """
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


async def stored(engine: LogEngine, name: str, body: bytes, runtime: Runtime) -> tuple[bool, bytes]:
    """Whether `body`, which nobody else stores, is what the name has; and what it has. Errors: see `Patience.pause`."""
    there = await patiently(f"store {name}", lambda: outcomes.stored(engine, name, [body]), runtime)
    return (True, body) if there is None else (False, bytes(there))


async def was_set(registry: Registry, name: str, value: bytes, version: str | None, runtime: Runtime) -> Entry | None:
    """`outcomes.was_set`, until there is an answer. Errors: see `Patience.pause`."""
    return await patiently(f"set {name}", lambda: outcomes.was_set(registry, name, value, version), runtime)
