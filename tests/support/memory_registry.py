"""An in-memory registry for tests: contents are in a `MemoryRecords`, shared by any number of `MemoryRegistry`s, one
per server. Each of these has its own faults: it is slow or silent, loses calls, or executes them much later; its lists
may be outdated.

A call happens in one instant, after `before_s` and followed by `after_s`, in the loop's seconds, so virtual time works.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import md5
from typing import TypeVar

from nadi.errors import UnavailableError
from nadi.object_log.engine import VersionedValue

T = TypeVar("T")


@dataclass(slots=True)
class MemoryRecords:
    """Values by name. Equal values have equal versions, as in object stores."""

    values: dict[str, VersionedValue] = field(default_factory=dict)
    history: deque[tuple[float, dict[str, VersionedValue]]] = field(default_factory=lambda: deque(maxlen=10_000))
    keeps_history: bool = False

    def set(self, name: str, value: bytes) -> str:
        entry = VersionedValue(value, md5(value).hexdigest())
        self.values[name] = entry
        self._changed()
        return entry.version

    def remove(self, name: str) -> None:
        self.values.pop(name, None)
        self._changed()

    def at(self, moment: float) -> dict[str, VersionedValue]:
        """Return the values at that time."""
        values_then: dict[str, VersionedValue] = {}
        for when, values in self.history:
            if when > moment:
                break
            values_then = values
        return values_then

    def _changed(self) -> None:
        if self.keeps_history:
            self.history.append((_now(), dict(self.values)))


@dataclass(slots=True)
class Faults:
    """The faults of one server's calls. Probabilities are from 0 to 1, times in seconds."""

    is_down: bool = False  # every call fails
    hangs: bool = False  # calls are neither answered nor executed
    before_s: float = 0.0  # mean time from the call to its execution
    after_s: float = 0.0  # mean time from its execution to its reply
    spread: float = 0.0  # 0: exactly the mean times, 1: up to twice the mean
    lost: float = 0.0  # calls that fail without being executed
    unanswered: float = 0.0  # calls that are executed and fail
    late: float = 0.0  # changes that fail and are executed later
    late_s: float = 0.0  # maximum delay of late changes
    stale_s: float = 0.0  # maximum age of lists
    failing: set[str] = field(default_factory=set)  # kinds of calls that fail: "put", "list", …


class MemoryRegistry:
    """A `Registry`. opened: while it isn't set, calls are neither started nor answered: their server is paused."""

    def __init__(self, records: MemoryRecords, faults: Faults | None = None, *, seed: int = 0) -> None:
        self._records, self.faults, self._random = records, faults or Faults(), random.Random(seed)
        self.calls: dict[str, int] = {}
        self.opened: asyncio.Event | None = None

    async def get(self, name: str) -> VersionedValue | None:
        return await self._call("get", lambda: self._records.values.get(name))

    async def put(self, name: str, value: bytes, *, ends_with_process: bool = False) -> str:
        return await self._call("put", lambda: self._records.set(name, value), changes=True)

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        def change() -> str | None:
            entry = self._records.values.get(name)
            if (entry.version if entry else None) != version:
                return None
            return self._records.set(name, value)

        return await self._call("compare_and_set", change, changes=True)

    async def list(self, folder: str) -> dict[str, str]:
        def versions() -> dict[str, str]:
            values = self._records.values
            if self.faults.stale_s:
                age = self.faults.stale_s * self._random.random()
                values = self._records.at(_now() - age)
            return {name: entry.version for name, entry in values.items() if name.startswith(folder)}

        return await self._call("list", versions)

    async def delete(self, name: str) -> None:
        await self._call("delete", lambda: self._records.remove(name), changes=True)

    async def _call(self, kind: str, happen: Callable[[], T], *, changes: bool = False) -> T:
        self.calls[kind] = self.calls.get(kind, 0) + 1
        await self._pass()
        faults = self.faults
        await asyncio.sleep(self._while(faults.before_s))
        if faults.hangs:
            await asyncio.get_running_loop().create_future()
        if faults.is_down or kind in faults.failing or self._random.random() < faults.lost:
            raise UnavailableError(f"the registry lost a {kind}")
        if changes and self._random.random() < faults.late:
            loop = asyncio.get_running_loop()
            loop.call_later(faults.late_s * self._random.random(), happen)
            raise UnavailableError(f"the registry lost a {kind} that is on its way")
        result = happen()
        await asyncio.sleep(self._while(faults.after_s))
        await self._pass()
        if self._random.random() < faults.unanswered:
            raise UnavailableError(f"the registry lost its answer to a {kind}")
        return result

    def _while(self, seconds: float) -> float:
        return seconds * (1 + self.faults.spread * (2 * self._random.random() - 1))

    async def _pass(self) -> None:
        if self.opened is not None:
            await self.opened.wait()


def _now() -> float:
    """Return the loop's time for the current process: simulated processes have separate clocks."""
    loop = asyncio.get_running_loop()
    return float(getattr(loop, "now", loop.time()))
