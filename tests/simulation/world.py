"""Servers and clients in simulated processes, a network between them, and a seed that determines everything, which
`trace` summarises.

A world's servers are a single one (`server`) or those of a cluster (`cluster`): each is a host with a name, and
`network` can cut them off from each other and from clients.
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

from .descriptions import described
from .machine.loop import SimulatedLoop
from .machine.network import Network
from .machine.process import Process
from .machine.store import SimulatedStore

T = TypeVar("T")
DRIFT = 0.1  # maximum deviation of a process's clock rate
_LAST_LINES = 5_000


class Serving(Protocol):
    """A server's life, from its start to its end, as seen by clients."""

    @property
    def process(self) -> Process: ...

    @property
    def controller(self) -> Controller: ...

    async def exchange(self, command: wire.Command) -> wire.Command:
        """Execute a command as from its controller."""


class Host(Protocol):
    """A server over all its lives."""

    @property
    def name(self) -> str: ...

    @property
    def kills(self) -> int: ...

    @property
    def failure(self) -> BaseException | None: ...

    def start(self) -> None: ...

    def end(self) -> None: ...

    def rest(self) -> None:
        """End all faults."""


class World:
    """seed: determines everything. drift: maximum deviation of clock rates."""

    def __init__(self, loop: SimulatedLoop, seed: str, drift: float = DRIFT) -> None:
        self.loop, self.seed, self._drift = loop, seed, drift
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._trace = hashlib.sha256()
        self.folder = Path(tempfile.mkdtemp(prefix="nadi-simulation-", dir=_memory_folder()))
        self.objects: dict[str, bytes] = {}  # of tier 2
        self.store = SimulatedStore(self.chance("store"), lambda: loop.now, loop.at, self.note)
        self.network = Network(loop, self.chance, self.note, self.trace_only)
        self.network.lost = 0.002  # share of calls, and of replies
        self.calls = 0

    @property
    def hosts(self) -> Sequence[Host]:
        """Return the servers."""
        raise NotImplementedError

    # --- for clients --------------------------------------------------------------------------------------

    async def endpoint_of(self, segment: str) -> tuple[str, int]:
        """Return a segment's address for a client; UnavailableError or LostError if unknown."""
        raise NotImplementedError

    async def reach(self, work: Callable[[Serving], Awaitable[T]]) -> T:
        """Run work where the controller is, over the network, from the calling process; LostError if it may have been
        executed or not."""
        raise NotImplementedError

    async def rpc(self, name: str, request: Any, timeout_s: float) -> Any:
        """Call one of the controller's RPCs over the network; AioRpcError as from gRPC."""
        raise NotImplementedError

    async def until_ready(self) -> None:
        """Wait until ready; raises the error that kept a server from starting."""
        raise NotImplementedError

    async def run(self, work: Callable[[Serving], Coroutine[Any, Any, T]]) -> T:
        """Run work where the controller is, without a network."""
        raise NotImplementedError

    # --- components -----------------------------------------------------------------------------------

    def chance(self, whose: str) -> random.Random:
        """Return a separate random source for each name, so that their users don't affect each other."""
        return random.Random(f"{self.seed}/{whose}")

    def process(self, name: str, life: str = "") -> Process:
        """Return a new process on the host of that name; its clock depends on its `life`."""
        chance = self.chance(f"process {life or name}")
        return Process(self.loop, name, chance, 1 + self._drift * (2 * chance.random() - 1))

    async def ask(self, client: str, what: object, work: Callable[[Serving], Awaitable[T]]) -> T:
        """Return or raise what the call does at the server; LostError if that is unknown."""
        return await self.noted(client, what, lambda: self.reach(work))

    async def noted(self, client: str, what: object, call: Callable[[], Awaitable[T]]) -> T:
        """Make the call and log it with its result."""
        self.calls += 1
        number = self.calls
        self.note(number, client, described(what))
        try:
            answer = await call()
        except Exception as error:
            self.note(number, type(error).__name__, str(error)[:80])
            raise
        self.note(number, described(answer))
        return answer

    def rest(self) -> None:
        """End all faults."""
        self.network.mend()
        self.store.mend()
        for server in self.hosts:
            server.rest()

    # --- log and trace --------------------------------------------------------------------------------

    def note(self, *what: object) -> None:
        """Add an event to the log and to the trace."""
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
