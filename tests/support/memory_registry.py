"""A registry in memory, for tests: what is in it lives in a `MemoryRecords`, which any number of `MemoryRegistry`s use,
one for each server. Each of them has its own faults: it takes time, doesn't answer, loses calls, or carries them out
much later; its lists may be old.

A call happens in one instant, after `before` and followed by `after`, in the loop's seconds: it works in virtual time.
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
        """What there was at that moment."""
        found: dict[str, VersionedValue] = {}
        for when, values in self.history:
            if when > moment:
                break
            found = values
        return found

    def _changed(self) -> None:
        if self.keeps_history:
            self.history.append((_now(), dict(self.values)))


@dataclass(slots=True)
class Faults:
    """What happens to one server's calls. Parts are from 0 to 1, times in seconds."""

    is_down: bool = False  # every call fails
    hangs: bool = False  # no call is answered, nor carried out
    before_s: float = 0.0  # from the call to when it happens, on average,
    after_s: float = 0.0  # and from then to its answer
    spread: float = 0.0  # from 0, exactly that long, to 1, anything up to twice that
    lost: float = 0.0  # calls that never happen, and fail
    unanswered: float = 0.0  # calls that happen, and fail
    late: float = 0.0  # changes that fail, and happen
    late_s: float = 0.0  # up to so much later
    stale_s: float = 0.0  # lists may be up to so old
    failing: set[str] = field(default_factory=set)  # kinds of calls that fail: "put", "list", …


class MemoryRegistry:
    """A `Registry`. opened: while it isn't set, calls don't begin, and aren't answered: their server is paused."""

    def __init__(self, records: MemoryRecords, faults: Faults | None = None, *, seed: int = 0) -> None:
        self._records, self.faults, self._random = records, faults or Faults(), random.Random(seed)
        self.calls: dict[str, int] = {}
        self.opened: asyncio.Event | None = None

    async def get(self, name: str) -> VersionedValue | None:
        return await self._call("get", lambda: self._records.values.get(name))

    async def put(self, name: str, value: bytes) -> str:
        return await self._call("put", lambda: self._records.set(name, value), changes=True)

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        def change() -> str | None:
            entry = self._records.values.get(name)
            if (entry.version if entry else None) != version:
                return None
            return self._records.set(name, value)

        return await self._call("compare_and_set", change, changes=True)

    async def list(self, folder: str) -> dict[str, str]:
        def found() -> dict[str, str]:
            values = self._records.values
            if self.faults.stale_s:
                age = self.faults.stale_s * self._random.random()
                values = self._records.at(_now() - age)
            return {name: entry.version for name, entry in values.items() if name.startswith(folder)}

        return await self._call("list", found)

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
    """The loop's time, of whichever process: those of a simulation have clocks of their own."""
    loop = asyncio.get_running_loop()
    return float(getattr(loop, "now", loop.time()))
