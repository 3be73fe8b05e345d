"""An object store shared by many processes, in virtual time, with its faults.

`SimulatedStore` is the store; each process has a `Line` to it, and over that an engine for logs and a registry
(`storeclients`). Each request is executed at one moment; whether and when its client gets the result is decided by the
seed. The store keeps the two promises that a cluster relies on: objects are never created over existing ones, and
conditional updates only succeed on the required version.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from crc32c import crc32c

from nadi.errors import UnavailableError

from .process import Process

T = TypeVar("T")
_MEDIAN_S, _SIGMA = 0.03, 0.69  # of a request: half take up to 30 ms, one in a hundred over 150 ms


@dataclass(slots=True)
class StoreFaults:
    """Fault rates, per request."""

    request_lost: float = 0.0  # not executed; the client notices by its timeout
    answer_lost: float = 0.0  # executed, without a reply
    late: float = 0.0  # executed after the client's timeout, if the condition still holds then
    latest_s: float = 10.0
    busy: float = 0.0  # False though the name is free: another client is said to be storing it
    repeated: float = 0.0  # False since the client's own first attempt succeeded, and it retried automatically
    throttled: float = 0.0  # not executed; the client is notified at once that there are too many requests
    unlisted_s: float = 0.0  # recent changes up to this age may be missing from listings
    timeout_s: float = 5.0  # of clients

    def rest(self) -> None:
        """End all faults."""
        self.request_lost = self.answer_lost = self.late = self.busy = self.repeated = 0.0
        self.throttled = self.unlisted_s = 0.0


@dataclass(slots=True)
class Kept:
    value: bytes
    version: str
    since: float


@dataclass(frozen=True, slots=True)
class Trap:
    """A trap for the next process that asks for a certain request: it is called right before the execution, right after
    it, or (None) either."""

    takes: Callable[[Process, str], bool]
    meets: Callable[[Process, str], None]
    is_before: bool | None = None


class SimulatedStore:
    """now: the simulation's time. at: calls something at a time. note: for the trace."""

    def __init__(
        self,
        chance: random.Random,
        now: Callable[[], float],
        at: Callable[..., object],
        note: Callable[..., None] = lambda *_: None,
    ) -> None:
        self.chance, self.now, self.at, self.note = chance, now, at, note
        self.faults = StoreFaults()
        self.objects: dict[str, Kept] = {}
        self.trap: Trap | None = None
        self.requests = self.lost = self.came_late = self.unanswered = self.refused = 0
        self._folders: dict[str, dict[str, None]] = {}  # names by their first part
        self._gone: dict[str, tuple[Kept, float]] = {}  # deleted objects, with the time
        self._down_until = self._throttled_until = self._slow_until = 0.0
        self._slow_times = 1.0
        self._cut_off: dict[str, float] = {}
        self._hidden: dict[tuple[str, str], float] = {}

    # --- faults -----------------------------------------------------------------------------------------

    def fail(self, seconds: float) -> None:
        """Let all requests fail for that time."""
        self.note("store is down", f"{seconds:.3f}")
        self._down_until = max(self._down_until, self.now() + seconds)

    def cut_off(self, name: str, seconds: float) -> None:
        """Let all requests of that process fail for that time."""
        self.note("store is cut off", name, f"{seconds:.3f}")
        self._cut_off[name] = max(self._cut_off.get(name, 0.0), self.now() + seconds)

    def is_back(self, name: str) -> None:
        """Serve that process again."""
        self.note("store is back", name)
        self._cut_off.pop(name, None)

    def hide(self, name: str, folder: str, seconds: float) -> None:
        """Let requests of that process for that folder fail, as if it were on another node of the store."""
        self.note("store hides", folder, "from", name, f"{seconds:.3f}")
        self._hidden[name, folder] = self.now() + seconds

    def slow(self, seconds: float, times: float) -> None:
        """Multiply the duration of all requests, for that time."""
        self.note("store is slow", f"{seconds:.3f} {times:.1f}")
        self._slow_until, self._slow_times = self.now() + seconds, times

    def throttle(self, seconds: float) -> None:
        """Reject half of all requests as too many, for that time."""
        self.note("store throttles", f"{seconds:.3f}")
        self._throttled_until = self.now() + seconds

    def mend(self) -> None:
        """End all faults."""
        self.faults.rest()
        self._down_until = self._throttled_until = self._slow_until = 0.0
        self._cut_off.clear()
        self._hidden.clear()
        self.trap = None

    @property
    def slowness(self) -> float:
        return self._slow_times if self.now() < self._slow_until else 1.0

    def is_too_much(self) -> bool:
        return self.happens(0.5 if self.now() < self._throttled_until else self.faults.throttled)

    def is_away(self, name: str, what: str) -> bool:
        """Return whether that request of that process fails."""
        hidden = self._hidden.get((name, _top(what.partition(" ")[2])), 0.0)
        return self.now() < max(self._down_until, self._cut_off.get(name, 0.0), hidden)

    def happens(self, part: float) -> bool:
        return part > 0 and self.chance.random() < part

    # --- requests, executed at one moment ---------------------------------------------------------------

    def create(self, name: str, value: bytes) -> bool:
        if name in self.objects:
            return False
        self._keep(name, value)
        return True

    def set_if(self, name: str, value: bytes, version: str | None) -> str | None:
        stored = self.objects.get(name)
        if (stored.version if stored is not None else None) != version:
            return None
        return self._keep(name, value)

    def put(self, name: str, value: bytes) -> str:
        return self._keep(name, value)

    def delete(self, name: str) -> None:
        removed = self.objects.pop(name, None)
        if removed is not None:
            del self._folders[_top(name)][name]
            self.note("deleted", name)
            self._gone[name] = removed, self.now()

    def listed(self, prefix: str) -> list[tuple[str, Kept]]:
        """List objects in random order, and slightly outdated."""
        folder, oldest = f"{prefix.rstrip('/')}/" if prefix else "", self.now() - self.faults.unlisted_s
        self._gone = {name: gone for name, gone in self._gone.items() if gone[1] > oldest}
        names = self.objects if not folder else self._folders.get(_top(folder), {})
        there = [(name, self.objects[name]) for name in sorted(names) if name.startswith(folder)]
        visible = [each for each in there if not (each[1].since > oldest and self.happens(0.5))]
        visible += [
            (name, one)
            for name, (one, _) in self._gone.items()
            if name.startswith(folder) and name not in self.objects and self.happens(0.5)
        ]
        self.chance.shuffle(visible)
        return visible

    def _keep(self, name: str, value: bytes) -> str:
        version = f'"{crc32c(value):08x}-{len(value)}"'  # an etag of the content, so equal objects have equal versions
        self.objects[name] = Kept(value, version, self.now())
        self._folders.setdefault(_top(name), {})[name] = None
        self._gone.pop(name, None)
        self.note("stored", name, version)
        return version


def _top(name: str) -> str:
    return name.partition("/")[0]


class Line:
    """A process's access to the store, with its delays and faults."""

    def __init__(self, store: SimulatedStore, process: Process) -> None:
        self.store, self._process = store, process

    async def is_busy(self) -> bool:
        """Return whether the store reports, after a while, that another client is storing the same object."""
        if not self.store.happens(self.store.faults.busy):
            return False
        await asyncio.sleep(self.duration_s())
        return True

    def is_repeated(self) -> bool:
        """Return whether the client retried automatically, and gets the second attempt's result."""
        return self.store.happens(self.store.faults.repeated)

    def duration_s(self) -> float:
        return _MEDIAN_S * self.store.chance.lognormvariate(0.0, _SIGMA) * self.store.slowness

    async def ask(self, what: str, do: Callable[[], T], *, changes: bool = True) -> T:
        """Return the result of a request; UnavailableError if that is unknown."""
        store, faults = self.store, self.store.faults
        store.requests += 1
        takes_s, part = self.duration_s(), store.chance.random()
        await asyncio.sleep(takes_s * part)
        if store.is_too_much():
            store.refused += 1
            raise UnavailableError(f"the object store throttled the request: {what}")
        if store.is_away(self._process.name, what) or store.happens(faults.request_lost):
            store.lost += 1
            await asyncio.sleep(faults.timeout_s)
            raise UnavailableError(f"the object store did not answer: {what}")
        if changes and store.happens(faults.late):
            store.came_late += 1
            store.at(store.now() + store.chance.random() * faults.latest_s, do)
            await asyncio.sleep(store.chance.random() * faults.timeout_s)
            raise UnavailableError(f"the object store did not answer: {what}")
        trap = store.trap if store.trap is not None and store.trap.takes(self._process, what) else None
        is_before = False
        if trap is not None:
            store.trap = None
            is_before = store.happens(0.5) if trap.is_before is None else trap.is_before
        if trap is not None and is_before:
            trap.meets(self._process, f"before {what}")
            await asyncio.sleep(takes_s * part)
        answer = do()
        if trap is not None and not is_before:
            trap.meets(self._process, f"after {what}")
        await asyncio.sleep(takes_s * (1 - part))
        if store.is_away(self._process.name, what) or store.happens(faults.answer_lost):
            store.unanswered += 1
            await asyncio.sleep(faults.timeout_s)
            raise UnavailableError(f"the object store's reply was lost: {what}")
        return answer
