"""A private server for tests and notebooks: `with nadi.embedded("data") as server: ...`.

It runs in a child process (docs/decisions/0001): it doesn't share the caller's interpreter lock, and
it ends when a caller is killed, because the child stops when its standard input closes.
Ctrl-C in a terminal and interrupting a notebook reach only the caller, which may still have things to store.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import wait
from pathlib import Path

import msgspec

from nadi.config import ServerConfig, ServerSecurity
from nadi.defaults import DEFAULT_HOST, DEFAULT_SCALING
from nadi.errors import (
    DataFolderError,
    InvalidArgumentError,
    RequestTimeoutError,
    StorageFullError,
    StoreError,
    UnavailableError,
)

START_TIMEOUT_S = 60.0
MOST_TOLD_BYTES = 65_536  # by its process, of where it listens
KILL_AFTER_S = 3.0  # a server that ends itself, whatever keeps it, hasn't then
ERROR_KINDS = {  # of a start, what is said more exactly first
    "folder": DataFolderError,
    "full": StorageFullError,
    "argument": InvalidArgumentError,
    "store": StoreError,
}


def encoded(config: ServerConfig) -> str:
    """The argument of a child process: JSON in ASCII, for names of files need not be Unicode."""
    return json.dumps(msgspec.to_builtins(config))


def stop_s(config: ServerConfig) -> float:
    """How long a server may take to stop before it ends itself as it is."""
    from nadi.limits import CLUSTER_STOP_S, STOP_S

    return CLUSTER_STOP_S if config.store else STOP_S


class Ready(msgspec.Struct):
    """What the child says on its standard output: where it listens, or why it can't."""

    controller_uri: str = ""
    store_host: str = ""
    store_port: int = 0
    rest_uri: str = ""
    error: str = ""
    error_kind: str = ""


class EmbeddedServer:
    """A running child server. Clients connect to `controller_uri`; `pid` is its process. `rest_uri` is the address of
    the REST interface, if it was requested."""

    def __init__(self, config: ServerConfig, *, timeout_s: float, environment: Mapping[str, str] | None = None) -> None:
        self.folder = Path(config.data or config.cache or "")  # none: a worker's own, which goes with it
        self._stop_s = stop_s(config) + KILL_AFTER_S
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nadi.standalone", encoded(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            process_group=0,
        )
        try:
            ready = self._await_ready(timeout_s)
            if ready.error:
                self._has_ended_in_time()
                raise ERROR_KINDS.get(ready.error_kind, UnavailableError)(ready.error)
        except BaseException:  # Ctrl-C, say
            self.kill()
            raise
        self.controller_uri = ready.controller_uri
        self.store_address = (ready.store_host, ready.store_port)
        self.rest_uri = ready.rest_uri

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    def _await_ready(self, timeout_s: float) -> Ready:
        """A whole line, or what there is at the output's end."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        until, line = time.monotonic() + timeout_s, b""
        while b"\n" not in line and len(line) < MOST_TOLD_BYTES:
            if not wait([output], max(0.0, until - time.monotonic())):
                raise RequestTimeoutError(f"the server was not ready within {timeout_s:.0f} s; see its messages above")
            part = os.read(output, 4096)
            if not part:
                break
            line += part
        if line:
            with contextlib.suppress(msgspec.MsgspecError):
                ready = msgspec.json.decode(line.partition(b"\n")[0], type=Ready)
                if ready.error or ready.controller_uri:
                    return ready
            raise UnavailableError(
                f"the server's process printed {line[:100]!r}, and not where it listens: see its messages above, and "
                "whether a sitecustomize.py or a .pth file prints something wherever Python starts"
            )
        if not self._has_ended_in_time():
            return Ready(error="the server closed its output, didn't end, and was killed; see its messages above")
        return Ready(error=f"the server ended at once with code {self._process.returncode}; see its messages above")

    def _has_ended_in_time(self) -> bool:
        """Whether it ends within the time that it may take to stop."""
        try:
            self._process.wait(self._stop_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Stop the server cleanly, and wait for it: up to two minutes where its disk is slow, and it has much to store.
        RequestTimeoutError: it didn't even end itself by then, and was killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            if not self._has_ended_in_time():
                self.kill()
                raise RequestTimeoutError("the server did not stop in time and was killed")
        self._close_pipes()

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash; nothing, once it has ended."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def memory_bytes(self) -> int:
        """Return the server's current resident memory, in bytes."""
        status = Path(f"/proc/{self.pid}/statm").read_text()
        return int(status.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak_memory_bytes(self) -> int:
        """Return the server's peak resident memory, in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return self.memory_bytes()

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def embedded(
    folder: str | Path | None = None,
    *,
    port: int = 0,
    rest_port: int | None = None,
    containers: int | None = None,
    timeout_s: float = START_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    host: str = DEFAULT_HOST,
    advertised_host: str | None = None,
    security: ServerSecurity | None = None,
    scaling: str = DEFAULT_SCALING,
    store: str = "",
    store_options: Mapping[str, str] | None = None,
    wal_profile: str | None = None,
    log: str = "",
    log_options: Mapping[str, str] | None = None,
    tier2: str = "",
    tier2_options: Mapping[str, str] | None = None,
    log_max_bytes: int | None = None,
) -> EmbeddedServer:
    """Start a server in a child process and wait until it takes clients.

    folder: where data is kept; None is a new temporary folder (which stays). port: the controller's,
    0 for any free one. rest_port: the REST interface's; None is no REST. containers: of a new folder, from 1 to
    1,000; 1 if not given. environment: variables for the server's process. host: where to listen; advertised_host:
    what clients are told, if not that. security: TLS and who may log in. scaling: how streams with a scaling policy
    follow their load, "fast" (within seconds) or "classic" (Pravega's rules, within tens of minutes). store: the URL of
    the store that a cluster shares (docs/cluster.md): the server is one of its, and `folder` a copy that nobody needs.
    store_options: of it, such as `endpoint`. wal_profile: how long its acknowledgements may take, for how few puts.
    log: the URL of a log that isn't in the store (docs/jetstream.md), with its log_options. tier2: the URL of a store
    that keeps the chunks of this one server (docs/tier2.md), with its tier2_options; log_max_bytes: what the log may
    hold while that takes nothing.
    Raises DataFolderError, StoreError, StorageFullError, InvalidArgumentError, UnavailableError, RequestTimeoutError.

    >>> import tempfile
    >>> with embedded(tempfile.mkdtemp()) as server:
    ...     server.controller_uri.startswith("tcp://127.0.0.1:")
    True
    """
    if folder == "":
        raise InvalidArgumentError("the data folder is empty: give a path, or '.' for the current folder")
    path = os.fspath(folder) if folder is not None else tempfile.mkdtemp(prefix="nadi-")
    config = ServerConfig(
        data=None if store else path,
        cache=path if store else None,
        host=host,
        port=port,
        store_port=0,
        rest_port=rest_port,
        containers=containers,
        advertised_host=advertised_host or None,
        security=security or ServerSecurity(),
        scaling=scaling,
        store=store or None,
        store_options=dict(store_options or {}),
        wal_profile=wal_profile,
        log=log or None,
        log_options=dict(log_options or {}),
        tier2=tier2 or None,
        tier2_options=dict(tier2_options or {}),
        log_max_bytes=log_max_bytes,
    )
    return EmbeddedServer(config, timeout_s=timeout_s, environment=environment)
