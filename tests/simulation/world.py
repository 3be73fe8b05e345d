"""Servers and clients in simulated processes, a network between them, and a seed: everything that happens follows from
it, and goes into `trace`.

Today there is one server, of two containers. For a cluster, give the world more: each `Server` is a host by its name,
with disks of its own, and `network` cuts them from each other as from clients. What a server is, is put together in
`Server._boot`: there a cluster's server gets its engine and its registry over the one object store
(`SimulatedEngine(world.store, process)`, `SimulatedRegistry(world.store, process)`), and its calls to other servers go
through `server.ask`, or over the wire by `loop.create_connection`. `server.kill`, `pause`, `set_clock`, `network.cut`
and `store.cut_off` are the same for each; `work` decides when they happen.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from .machine.disk import SimulatedLog
from .machine.loop import SimulatedLoop
from .machine.network import Network
from .machine.process import Process
from .machine.store import SimulatedStore
from .server import Life, Server
from .told import told

T = TypeVar("T")
DRIFT = 0.1  # how much faster or slower a process's clock may run
_LAST_LINES = 5_000


class World:
    """seed: all of it. log: what the containers' logs are. drift: how wrong clocks may run."""

    def __init__(
        self, loop: SimulatedLoop, seed: str, log: type[SimulatedLog] = SimulatedLog, drift: float = DRIFT
    ) -> None:
        self.loop, self.seed, self._drift = loop, seed, drift
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._trace = hashlib.sha256()
        self.folder = Path(tempfile.mkdtemp(prefix="nadi-simulation-", dir=_memory_folder()))
        self.objects: dict[str, bytes] = {}  # of tier 2
        self.store = SimulatedStore(self.chance("store"), lambda: loop.now, loop.at, self.note)
        self.network = Network(loop, self.chance, self.note, self.trace_only)
        self.network.lost = 0.002  # of all calls, and of all answers
        self.server = Server(self, "server", log)
        self.servers = [self.server]
        self.calls = 0

    # --- what is done ---------------------------------------------------------------------------------

    def chance(self, whose: str) -> random.Random:
        """A source of its own for each, so that what one does more often changes nothing for the others."""
        return random.Random(f"{self.seed}/{whose}")

    def process(self, name: str, life: str = "") -> Process:
        """A new one, on the host of that name; its clock is of its `life`."""
        chance = self.chance(f"process {life or name}")
        return Process(self.loop, name, chance, 1 + self._drift * (2 * chance.random() - 1))

    async def ask(self, who: str, what: object, work: Callable[[Life], Awaitable[T]]) -> T:
        """What the call gives or raises at the server; LostError where that can't be known."""
        return await self.noted(who, what, lambda: self.server.ask(work))

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
        self.store.faults.rest()
        for server in self.servers:
            server.faults.rest()

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
        return sum(server.kills for server in self.servers)

    @property
    def failure(self) -> BaseException | None:
        """Why a server did not start."""
        return next((server.failure for server in self.servers if server.failure is not None), None)

    # --- from start to end ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        for server in self.servers:
            server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for server in self.servers:
            server.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
