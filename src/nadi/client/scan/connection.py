"""One client for each controller in a process, for readers that get their work from elsewhere.

Processes that are forked and reused, as Spark's Python workers are, have one each: a client belongs to the process that
made it.
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
    """Where a controller is and how to authenticate there; whatever isn't given comes from the environment of
    the process that connects. It is sent to who reads elsewhere, credentials included."""

    uri: str
    credentials: Credentials | None = None
    trust_store: str | None = None
    validate_host_name: bool = True


class ScanClient:
    def __init__(self, thread: LoopThread, manager: aio.StreamManager) -> None:
        self.thread, self.manager = thread, manager

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.thread.run(work)


def opened(connection: ConnectionSettings, what_for: str) -> tuple[LoopThread, aio.StreamManager]:
    """A new client. what_for: for the name of its thread."""
    thread = LoopThread(f"nadi client of {connection.uri} for {what_for}")
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
    """By which others make a client like this one."""
    controller = stores_of(manager).controller
    security = controller.security
    uri = f"{'tls' if security.tls else 'tcp'}://{controller.address}"
    return ConnectionSettings(uri, security.credentials, security.trust_store, security.validate_host_name)


_clients: dict[tuple[int, ConnectionSettings], ScanClient] = {}


def client_of(connection: ConnectionSettings) -> ScanClient:
    """This process's client of that controller, for all its threads."""
    key = (os.getpid(), connection)
    client = _clients.get(key)
    if client is None:
        made = ScanClient(*opened(connection, "scans"))
        client = _clients.setdefault(key, made)  # no lock, which another thread might hold while it forks
        if client is not made:  # one that another thread made just now
            made.thread.close(made.manager.close())
    return client
