"""One client for each controller in a Python process of Spark, kept from batch to batch.

Spark's Python workers are forked and reused: a client belongs to the process that made it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from nadi.client import aio
from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.control.security import Credentials
from nadi.client.manager.streams import stores_of
from nadi.errors import StreamNotFoundError

_Result = TypeVar("_Result")
_FREEZES = 3  # pyarrow and pandas are imported lazily, over a worker's first tasks
_tasks = 0


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a controller is and how to authenticate there; whatever isn't given comes from the environment of
    the process that connects. It is sent to Spark's workers, credentials included."""

    uri: str
    credentials: Credentials | None = None
    trust_store: str | None = None
    validate_host_name: bool = True


_clients: dict[tuple[int, Connection], Client] = {}


class Client:
    """The asyncio client and the thread it runs in; `run` from any other thread."""

    def __init__(self, controller: Connection) -> None:
        self.thread = LoopThread(f"nadi client of {controller.uri} for Spark")
        self.manager = self.thread.result(
            aio.StreamManager,
            controller.uri,
            credentials=controller.credentials,
            trust_store=controller.trust_store,
            validate_host_name=controller.validate_host_name,
            blocking=True,
        )
        self.writers: dict[tuple[str, str], aio.TransactionalEventWriter] = {}

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return self.thread.run(work)

    async def transaction_writer(self, scope: str, stream: str) -> aio.TransactionalEventWriter:
        """The process's one writer on this stream."""
        writer = self.writers.get((scope, stream))
        if writer is None:
            writer = await self.manager.create_transaction_writer(scope, stream)
            self.writers[scope, stream] = writer
        return writer

    async def check_stream(self, scope: str, stream: str) -> None:
        """StreamNotFoundError if it doesn't exist now: it may have been deleted since the process wrote to it last."""
        if not await stores_of(self.manager).controller.stream_exists(scope, stream):
            raise StreamNotFoundError(scope, stream)


def client_of(controller: Connection) -> Client:
    """This process's client of that controller."""
    key = (os.getpid(), controller)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = Client(controller)
    return client


def begin_task() -> None:
    """To be called at the start of each task.

    Spark's worker daemon collects garbage after each task, 25 to 50 ms over all that is imported;
    frozen objects are skipped.
    """
    global _tasks
    _tasks += 1
    if _tasks <= _FREEZES:
        gc.freeze()
