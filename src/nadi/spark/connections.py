"""One client per controller in each of Spark's Python processes, reused from batch to batch; and the current task.

Clients are keyed by process id, as Spark's Python workers are forked and reused.
"""

from __future__ import annotations

import gc
import os

from nadi.client import StreamManager, aio
from nadi.client.scan import connection as scan
from nadi.client.scan.connection import ConnectionSettings

_FREEZES = 3  # pyarrow and pandas are imported lazily, over a worker's first tasks
_tasks = 0
_clients: dict[tuple[int, ConnectionSettings], TaskClient] = {}
_managers: dict[tuple[int, ConnectionSettings], StreamManager] = {}


class TaskClient(scan.ScanClient):
    """The client of a task: also caches its writers by scope and stream, and when each stream was last seen to
    exist."""

    def __init__(self, connection: ConnectionSettings) -> None:
        super().__init__(*scan.opened(connection, "Spark"))
        self.seen: dict[tuple[str, str], float] = {}
        self.event_writers: dict[tuple[str, str], aio.EventWriter] = {}
        self.writers: dict[tuple[str, str], aio.TransactionalEventWriter] = {}


def client_of(controller: ConnectionSettings) -> TaskClient:
    key = (os.getpid(), controller)
    if key not in _clients:
        _clients[key] = TaskClient(controller)
    return _clients[key]


def manager_of(controller: ConnectionSettings) -> StreamManager:
    key = (os.getpid(), controller)
    if key not in _managers:
        _managers[key] = StreamManager(
            controller.uri,
            credentials=controller.credentials,
            trust_store=controller.trust_store,
            validate_host_name=controller.validate_host_name,
        )
    return _managers[key]


def batch_of_task() -> tuple[str, int] | None:
    """Return the query's id and the batch's number of the current task; None outside of streaming queries."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    query_id, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
    return (query_id, int(batch)) if query_id and batch else None


def attempt_of_task() -> tuple[int, int, int]:
    """Return the partition, the stage and the attempt of the current task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.partitionId(), context.stageId(), context.taskAttemptId()) if context is not None else (0, 0, 0)


def begin_task() -> None:
    """Freeze the imported objects during a worker's first tasks; call it at the start of each task.

    Spark's worker daemon collects garbage after each task, which takes 25 to 50 ms for all imported modules; frozen
    objects are skipped.
    """
    global _tasks
    _tasks += 1
    if _tasks <= _FREEZES:
        gc.freeze()
