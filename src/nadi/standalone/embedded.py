"""Private server for tests and notebooks: `with nadi.embedded("data") as server: ...`.

The server runs in a child process (docs/decisions/0001), so it doesn't share the caller's interpreter lock. It ends
when the caller is killed, because it stops when its standard input closes. Ctrl-C in a terminal and interrupting a
notebook reach only the caller, which may still have data to write.
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
    EncryptionKeyError,
    InvalidArgumentError,
    RequestTimeoutError,
    StorageFullError,
    StoreError,
    UnavailableError,
)

START_TIMEOUT_S = 60.0
MAX_READY_BYTES = 65_536  # of the child's report
KILL_AFTER_S = 3.0  # time after the server should have ended itself
ERROR_KINDS = {  # of a failed start; subclasses first
    "folder": DataFolderError,
    "full": StorageFullError,
    "argument": InvalidArgumentError,
    "store": StoreError,
    "key": EncryptionKeyError,
}


def encoded(config: ServerConfig) -> str:
    """Return the child's argument: JSON in ASCII, because file names may not be Unicode."""
    return json.dumps(msgspec.to_builtins(config))


def stop_s(config: ServerConfig) -> float:
    """Return the time limit after which a stopping server ends itself."""
    from nadi.limits import CLUSTER_STOP_S, STOP_S

    return CLUSTER_STOP_S if config.store else STOP_S


class Ready(msgspec.Struct):
    """Report of the child on its standard output: its addresses, or the error of the start."""

    controller_uri: str = ""
    store_host: str = ""
    store_port: int = 0
    rest_uri: str = ""
    kafka_address: str = ""
    error: str = ""
    error_kind: str = ""


class EmbeddedServer:
    """Running server in a child process. Clients connect to `controller_uri`; `pid` is its process id. `rest_uri` is
    the address of the REST interface, and `kafka_address` that for Kafka clients, if requested."""

    def __init__(self, config: ServerConfig, *, timeout_s: float, environment: Mapping[str, str] | None = None) -> None:
        self.folder = Path(config.data or config.cache or "")  # empty for a worker with a temporary cache
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
        except BaseException:  # such as KeyboardInterrupt
            self.kill()
            raise
        self.controller_uri = ready.controller_uri
        self.store_address = (ready.store_host, ready.store_port)
        self.rest_uri = ready.rest_uri
        self.kafka_address = ready.kafka_address

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    def _await_ready(self, timeout_s: float) -> Ready:
        """Read the report, up to a complete line or the end of the output."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        until, line = time.monotonic() + timeout_s, b""
        while b"\n" not in line and len(line) < MAX_READY_BYTES:
            if not wait([output], max(0.0, until - time.monotonic())):
                raise RequestTimeoutError(f"the server wasn't ready within {timeout_s:.0f} s: see its messages above")
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
                f"unexpected output of the server's process, {line[:100]!r}: see its messages above, and check whether "
                "a sitecustomize.py or a .pth file prints something when Python starts"
            )
        if not self._has_ended_in_time():
            return Ready(error="the server closed its output but didn't end, and was killed: see its messages above")
        return Ready(error=f"the server ended at once with code {self._process.returncode}: see its messages above")

    def _has_ended_in_time(self) -> bool:
        """Wait for the process to end within its time limit; return whether it has."""
        try:
            self._process.wait(self._stop_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Stop the server cleanly and wait for it, up to two minutes if its disk is slow and much is unwritten.
        RequestTimeoutError: it didn't end in that time, and was killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            if not self._has_ended_in_time():
                self.kill()
                raise RequestTimeoutError("the server didn't stop in time and was killed")
        self._close_pipes()

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash. Does nothing once it has ended."""
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
    kafka_port: int | None = None,
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
    """Start a server in a child process and wait until clients can connect.

    folder: data folder; None creates a temporary folder, which isn't removed. port: of the controller, 0 for any free
    one. rest_port: of the REST interface; None for no REST. kafka_port: for Kafka clients (docs/kafka.md); None for
    none. containers: of a new folder, from 1 to 1,000; default 1. environment: variables for the server's process.
    host: address to listen on; advertised_host: address given to clients, if different. security: TLS and logins.
    scaling: how streams with a scaling policy follow their load,
    "fast" (within seconds) or "classic" (Pravega's rules, within tens of minutes). store: URL of a cluster's store
    (docs/cluster.md); the server joins that cluster, and `folder` is only a cache. store_options: of the store, such as
    `endpoint`. wal_profile: trades acknowledgement latency for fewer PUTs. log: URL of a log outside the store
    (docs/jetstream.md), with its log_options. tier2: URL of a store for the chunks of this one server (docs/tier2.md),
    with its tier2_options; log_max_bytes: the log's maximum size while tier 2 accepts nothing.

    Raises DataFolderError, StoreError, StorageFullError, InvalidArgumentError, UnavailableError, RequestTimeoutError.

    >>> import tempfile
    >>> with embedded(tempfile.mkdtemp()) as server:
    ...     server.controller_uri.startswith("tcp://127.0.0.1:")
    True
    """
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise InvalidArgumentError(f"the data folder can't be {folder!r}: pass a path")
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
        kafka_port=kafka_port,
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
