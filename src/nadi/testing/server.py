"""A server that tests can kill and restart, at the same address and with the same data.

`kill` is `kill -9`: nothing is flushed and no client is notified. Clients resume automatically once the server is back,
so a test can write, kill, restart, and check whether its program lost or duplicated events.
"""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nadi.errors import ConflictError, InvalidArgumentError, UnavailableError
from nadi.standalone.embedded import START_TIMEOUT_S, EmbeddedServer, embedded

_PORTS = range(20_000, 30_000)  # below the ephemeral ports, which clients may take while the server is down
_TRIES = 5


class RestartableServer:
    """A server in a child process; `controller_uri` stays the same across restarts.

    folder: where data is stored; None means a temporary folder that `close` removes. environment: variables for
    the server's process, such as NADI_LIMITS.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        if folder == "":
            raise InvalidArgumentError("the data folder is empty: pass a path, or '.' for the current folder")
        self._temporary = tempfile.TemporaryDirectory(prefix="nadi-") if folder is None else None
        self.folder = Path(self._temporary.name if self._temporary is not None else folder or "")
        self._environment, self._timeout_s = dict(environment or {}), timeout_s
        self._running: EmbeddedServer | None = None
        self._port = 0  # chosen on the first start
        self.start()

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def controller_uri(self) -> str:
        """The address that clients connect to, even while the server is down."""
        return f"tcp://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The server's current process id; UnavailableError while it is down."""
        return self._server().pid

    def start(self) -> None:
        """Start the server on its data, and return when it accepts clients. ConflictError if it is running."""
        if self._running is not None:
            raise ConflictError("the server is already running: kill() or stop() it first")
        if self._port:
            self._running = self._started(self._port)
            return
        for remaining in reversed(range(_TRIES)):
            port = _free_port()
            try:
                self._running, self._port = self._started(port), port
                return
            except UnavailableError:
                if not remaining or _is_free(port):  # the port isn't taken: the failure has another cause
                    raise

    def _started(self, port: int) -> EmbeddedServer:
        return embedded(self.folder, port=port, environment=self._environment, timeout_s=self._timeout_s)

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash."""
        server, self._running = self._server(), None
        server.kill()

    def stop(self) -> None:
        """Stop the server cleanly."""
        server, self._running = self._server(), None
        server.stop()

    def restart(self) -> None:
        """`kill`, then `start`."""
        self.kill()
        self.start()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Kill the server, and restart it after the block, even if the block raises."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    def ensure_running(self) -> None:
        """Start the server if it is down, for instance after a test that failed between `kill` and `start`."""
        if self._running is None:
            self.start()

    def close(self) -> None:
        """Stop the server if it is running, and remove a temporary folder."""
        try:
            if self._running is not None:
                self.stop()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    def _server(self) -> EmbeddedServer:
        if self._running is None:
            raise UnavailableError("the server is down: start() it first")
        return self._running

    def __enter__(self) -> RestartableServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _free_port() -> int:
    while not _is_free(port := random.SystemRandom().choice(_PORTS)):
        pass
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
