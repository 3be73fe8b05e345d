"""An object store that many processes share, in virtual time, and what can go wrong with it.

`SimulatedStore` is the one store; each process has a `Line` to it, and over that an engine for logs and a registry
(`storeclients`). What a store does, it does in one moment; what of that
a client learns, and when, is decided by the seed. It keeps the two promises on which a cluster stands: nothing is ever
created over something, and nothing is set on another version than was asked for.
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
_MEDIAN_S, _SIGMA = 0.03, 0.69  # of a request: half take 30 ms, one in a hundred 150 ms


@dataclass(slots=True)
class StoreFaults:
    """How often what goes wrong, of all requests."""

    request_lost: float = 0.0  # nothing was done; the client learns so much later
    answer_lost: float = 0.0  # it was done, and the client isn't told
    late: float = 0.0  # the client gives up, and the store carries it out later, if the condition still holds then
    latest_s: float = 10.0
    busy: float = 0.0  # False though nothing has the name: somebody else is just storing it, or says so
    repeated: float = 0.0  # False, for the client's own first try was carried out, and it tried again by itself
    throttled: float = 0.0  # nothing was done, and the client is told at once that there are too many requests
    unlisted_s: float = 0.0  # what was stored or deleted less than up to so long ago may be missing, or still there
    timeout_s: float = 5.0  # after which a client gives up

    def rest(self) -> None:
        """Nothing goes wrong any more."""
        self.request_lost = self.answer_lost = self.late = self.busy = self.repeated = 0.0
        self.throttled = self.unlisted_s = 0.0


@dataclass(slots=True)
class Kept:
    value: bytes
    version: str
    since: float


@dataclass(frozen=True, slots=True)
class Trap:
    """For whoever next asks what it takes: they meet this right before that is done, or right after it (None: one or
    the other)."""

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
        self._folders: dict[str, dict[str, None]] = {}  # the names that begin with each
        self._gone: dict[str, tuple[Kept, float]] = {}  # deleted, and when
        self._down_until = self._throttled_until = self._slow_until = 0.0
        self._slow_times = 1.0
        self._cut_off: dict[str, float] = {}
        self._hidden: dict[tuple[str, str], float] = {}

    # --- what can go wrong ------------------------------------------------------------------------------

    def fail(self, seconds: float) -> None:
        """It answers nobody for so long."""
        self.note("store is down", f"{seconds:.3f}")
        self._down_until = max(self._down_until, self.now() + seconds)

    def cut_off(self, name: str, seconds: float) -> None:
        """Nor that process."""
        self.note("store is cut off", name, f"{seconds:.3f}")
        self._cut_off[name] = max(self._cut_off.get(name, 0.0), self.now() + seconds)

    def is_back(self, name: str) -> None:
        """For that process."""
        self.note("store is back", name)
        self._cut_off.pop(name, None)

    def hide(self, name: str, folder: str, seconds: float) -> None:
        """It answers that process nothing about that folder: a store has it elsewhere than others."""
        self.note("store hides", folder, "from", name, f"{seconds:.3f}")
        self._hidden[name, folder] = self.now() + seconds

    def slow(self, seconds: float, times: float) -> None:
        """Whatever it is asked takes so many times as long, for so long."""
        self.note("store is slow", f"{seconds:.3f} {times:.1f}")
        self._slow_until, self._slow_times = self.now() + seconds, times

    def throttle(self, seconds: float) -> None:
        """Half of all requests are too many to it, for so long."""
        self.note("store throttles", f"{seconds:.3f}")
        self._throttled_until = self.now() + seconds

    def mend(self) -> None:
        """Nothing goes wrong any more."""
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
        """For the process of that name, which asks that."""
        hidden = self._hidden.get((name, _top(what.partition(" ")[2])), 0.0)
        return self.now() < max(self._down_until, self._cut_off.get(name, 0.0), hidden)

    def happens(self, part: float) -> bool:
        return part > 0 and self.chance.random() < part

    # --- what it does, in one moment ----------------------------------------------------------------------

    def create(self, name: str, value: bytes) -> bool:
        if name in self.objects:
            return False
        self._keep(name, value)
        return True

    def set_if(self, name: str, value: bytes, version: str | None) -> str | None:
        found = self.objects.get(name)
        if (found.version if found is not None else None) != version:
            return None
        return self._keep(name, value)

    def put(self, name: str, value: bytes) -> str:
        return self._keep(name, value)

    def delete(self, name: str) -> None:
        found = self.objects.pop(name, None)
        if found is not None:
            del self._folders[_top(name)][name]
            self.note("deleted", name)
            self._gone[name] = found, self.now()

    def listed(self, prefix: str) -> list[tuple[str, Kept]]:
        """In any order, and not quite up to date."""
        folder, oldest = f"{prefix.rstrip('/')}/" if prefix else "", self.now() - self.faults.unlisted_s
        self._gone = {name: gone for name, gone in self._gone.items() if gone[1] > oldest}
        names = self.objects if not folder else self._folders.get(_top(folder), {})
        there = [(name, self.objects[name]) for name in sorted(names) if name.startswith(folder)]
        found = [each for each in there if not (each[1].since > oldest and self.happens(0.5))]
        found += [
            (name, one)
            for name, (one, _) in self._gone.items()
            if name.startswith(folder) and name not in self.objects and self.happens(0.5)
        ]
        self.chance.shuffle(found)
        return found

    def _keep(self, name: str, value: bytes) -> str:
        version = f'"{crc32c(value):08x}-{len(value)}"'  # an etag: of the content, so that equal ones are equal
        self.objects[name] = Kept(value, version, self.now())
        self._folders.setdefault(_top(name), {})[name] = None
        self._gone.pop(name, None)
        self.note("stored", name, version)
        return version


def _top(name: str) -> str:
    return name.partition("/")[0]


class Line:
    """A process's way to the store, and what it takes."""

    def __init__(self, store: SimulatedStore, process: Process) -> None:
        self.store, self._process = store, process

    async def is_busy(self) -> bool:
        """Whether the store says, after a while, that somebody else is just storing the same."""
        if not self.store.happens(self.store.faults.busy):
            return False
        await asyncio.sleep(self.duration_s())
        return True

    def is_repeated(self) -> bool:
        """Whether the client has sent a request again by itself, and is told what the second one met."""
        return self.store.happens(self.store.faults.repeated)

    def duration_s(self) -> float:
        return _MEDIAN_S * self.store.chance.lognormvariate(0.0, _SIGMA) * self.store.slowness

    async def ask(self, what: str, do: Callable[[], T], *, changes: bool = True) -> T:
        """What it gives; UnavailableError where that can't be known."""
        store, faults = self.store, self.store.faults
        store.requests += 1
        takes_s, part = self.duration_s(), store.chance.random()
        await asyncio.sleep(takes_s * part)
        if store.is_too_much():
            store.refused += 1
            raise UnavailableError(f"the object store wants fewer requests: {what}")
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
            raise UnavailableError(f"the object store's answer was lost: {what}")
        return answer
