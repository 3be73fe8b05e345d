"""One client per controller and process, for readers that receive their work from another process.

Keyed by process id, as a client belongs to the process that created it: Spark's Python workers are forked and reused.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from nadi.client import aio
from nadi.client.control.loop_thread import LoopThread
from nadi.client.control.security import Credentials
from nadi.client.manager.streams import stores_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """A controller's address and the credentials for it; unset values come from the environment of the connecting
    process. Sent to remote readers, credentials included."""

    uri: str
    credentials: Credentials | None = None
    trust_store: str | None = None
    validate_host_name: bool = True


class ScanClient:
    def __init__(self, thread: LoopThread, manager: aio.StreamManager) -> None:
        self.thread, self.manager = thread, manager

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.thread.run(work)


def opened(connection: ConnectionSettings, purpose: str) -> tuple[LoopThread, aio.StreamManager]:
    """Return a new client. purpose: part of its thread's name."""
    thread = LoopThread(f"nadi client of {connection.uri} for {purpose}")
    manager = thread.result(
        aio.StreamManager,
        connection.uri,
        credentials=connection.credentials,
        trust_store=connection.trust_store,
        validate_host_name=connection.validate_host_name,
        blocking=True,
    )
    return thread, manager


def connection_of(manager: aio.StreamManager) -> ConnectionSettings:
    """Return the settings to create an equal client with."""
    controller = stores_of(manager).controller
    security = controller.security
    uri = f"{'tls' if security.tls else 'tcp'}://{controller.address}"
    return ConnectionSettings(uri, security.credentials, security.trust_store, security.validate_host_name)


_clients: dict[tuple[int, ConnectionSettings], ScanClient] = {}


def client_of(connection: ConnectionSettings) -> ScanClient:
    """Return this process's client of that controller, shared by all threads."""
    key = (os.getpid(), connection)
    client = _clients.get(key)
    if client is None:
        created = ScanClient(*opened(connection, "scans"))
        client = _clients.setdefault(key, created)  # lock-free, as another thread might hold a lock during a fork
        if client is not created:  # another thread was faster
            created.thread.close(created.manager.close())
    return client
