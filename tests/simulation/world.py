"""Servers and clients in simulated processes, a network between them, and a seed: everything that happens follows from
it, and goes into `trace`.

A world's servers are one by itself (`server`), or those of a cluster (`cluster`): each is a host by its name, and
`network` cuts them from each other as from clients.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from nadi.controller.controller import Controller
from nadi.wire import commands as wire

from .machine.loop import SimulatedLoop
from .machine.network import Network
from .machine.process import Process
from .machine.store import SimulatedStore
from .told import told

T = TypeVar("T")
DRIFT = 0.1  # how much faster or slower a process's clock may run
_LAST_LINES = 5_000


class Serving(Protocol):
    """What there is of a server from a start to the end that it finds."""

    @property
    def process(self) -> Process: ...

    @property
    def controller(self) -> Controller: ...

    async def exchange(self, command: wire.Command) -> wire.Command:
        """At the door that its controller uses."""


class Host(Protocol):
    """A server, in all its lives."""

    @property
    def name(self) -> str: ...

    @property
    def kills(self) -> int: ...

    @property
    def failure(self) -> BaseException | None: ...

    def start(self) -> None: ...

    def end(self) -> None: ...

    def rest(self) -> None:
        """Nothing goes wrong with it any more."""


class World:
    """seed: all of it. drift: how wrong clocks may run."""

    def __init__(self, loop: SimulatedLoop, seed: str, drift: float = DRIFT) -> None:
        self.loop, self.seed, self._drift = loop, seed, drift
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._trace = hashlib.sha256()
        self.folder = Path(tempfile.mkdtemp(prefix="nadi-simulation-", dir=_memory_folder()))
        self.objects: dict[str, bytes] = {}  # of tier 2
        self.store = SimulatedStore(self.chance("store"), lambda: loop.now, loop.at, self.note)
        self.network = Network(loop, self.chance, self.note, self.trace_only)
        self.network.lost = 0.002  # of all calls, and of all answers
        self.calls = 0

    @property
    def hosts(self) -> Sequence[Host]:
        """The servers."""
        raise NotImplementedError

    # --- what its clients reach ---------------------------------------------------------------------------

    async def endpoint_of(self, segment: str) -> tuple[str, int]:
        """Where a client finds a segment; UnavailableError or LostError if that can't be known now."""
        raise NotImplementedError

    async def reach(self, work: Callable[[Serving], Awaitable[T]]) -> T:
        """Done where the controller is, over the network, from the process that calls this; LostError where nobody
        knows whether it was done."""
        raise NotImplementedError

    async def rpc(self, name: str, request: Any, timeout_s: float) -> Any:
        """One of the controller's RPCs, likewise; AioRpcError as from gRPC."""
        raise NotImplementedError

    async def until_ready(self) -> None:
        """Raises what kept a server from starting."""
        raise NotImplementedError

    async def run(self, work: Callable[[Serving], Coroutine[Any, Any, T]]) -> T:
        """Done where the controller is, without a network between."""
        raise NotImplementedError

    # --- what is done ---------------------------------------------------------------------------------

    def chance(self, whose: str) -> random.Random:
        """A source of its own for each, so that what one does more often changes nothing for the others."""
        return random.Random(f"{self.seed}/{whose}")

    def process(self, name: str, life: str = "") -> Process:
        """A new one, on the host of that name; its clock is of its `life`."""
        chance = self.chance(f"process {life or name}")
        return Process(self.loop, name, chance, 1 + self._drift * (2 * chance.random() - 1))

    async def ask(self, who: str, what: object, work: Callable[[Serving], Awaitable[T]]) -> T:
        """What the call gives or raises at the server; LostError where that can't be known."""
        return await self.noted(who, what, lambda: self.reach(work))

    async def noted(self, who: str, what: object, call: Callable[[], Awaitable[T]]) -> T:
        """The call, and what comes back, go into the log."""
        self.calls += 1
        number = self.calls
        self.note(number, who, told(what))
        try:
            answer = await call()
        except Exception as error:
            self.note(number, type(error).__name__, str(error)[:80])
            raise
        self.note(number, told(answer))
        return answer

    def rest(self) -> None:
        """Nothing goes wrong any more."""
        self.network.mend()
        self.store.mend()
        for server in self.hosts:
            server.rest()

    # --- what has happened ----------------------------------------------------------------------------

    def note(self, *what: object) -> None:
        """It has happened: a part of the log, and of the trace."""
        line = f"{self.loop.now:.6f} {' '.join(map(str, what))}"
        self.last_lines.append(line)
        self._trace.update(line.encode())

    def trace_only(self, *what: object) -> None:
        self._trace.update(f"{self.loop.now:.6f} {what}".encode())

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()

    @property
    def kills(self) -> int:
        return sum(server.kills for server in self.hosts)

    @property
    def failure(self) -> BaseException | None:
        """Why a server did not start."""
        return next((server.failure for server in self.hosts if server.failure is not None), None)

    # --- from start to end ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        for server in self.hosts:
            server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for server in self.hosts:
            server.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
