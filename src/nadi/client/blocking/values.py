"""The blocking face of `nadi.client.serializers.values`, and of a stream's schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar
from uuid import UUID

from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.reading.watermarks import TimeWindow
from nadi.client.serializers import values
from nadi.client.serializers.protocol import SchemaSerializer
from nadi.client.serializers.registry import Compatibility, SchemaGroup, SchemaVersion
from nadi.client.serializers.values import ValueEvent, Values
from nadi.client.writing.batch import Ack
from nadi.errors import ClosedError, DamagedDataError
from nadi.model.streamcut import StreamCut

T = TypeVar("T")


class ValueWriter(Values[T]):
    """EventWriter's methods, for values."""

    def __init__(self, thread: LoopThread, core: values.ValueWriter[T]) -> None:
        super().__init__(core.events, core.encode)
        self._thread, self._core = thread, core

    def note_time(self, timestamp_ms: int) -> Ack:
        """Say that what was written so far has times up to this one, and what comes later none before it."""
        return self._core.note_time(timestamp_ms)

    def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is stored; raise the first failure since the last flush."""
        self._thread.run(self._core.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end."""
        self._thread.run(self._core.close(timeout))

    def __enter__(self) -> ValueWriter[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ValueTransaction(Values[T]):
    """Transaction's methods, for values."""

    def __init__(self, thread: LoopThread, core: values.ValueTransaction[T]) -> None:
        super().__init__(core.events, core.encode)
        self._thread, self._core = thread, core

    @property
    def txn_id(self) -> UUID:
        """By which `get_txn` finds it, here or elsewhere."""
        return self._core.txn_id

    def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is stored (and not yet part of the stream)."""
        self._thread.run(self._core.flush(timeout))

    def commit(self, *, wait: bool = False, timeout: float | None = 120.0, timestamp_ms: int | None = None) -> None:
        """Make the events part of the stream; with `wait`, return once readers can see them."""
        self._thread.run(self._core.commit(wait=wait, timeout=timeout, timestamp_ms=timestamp_ms))

    def abort(self, *, wait: bool = False, timeout: float | None = 120.0) -> None:
        """Forget the events."""
        self._thread.run(self._core.abort(wait=wait, timeout=timeout))

    def ping(self, lease_ms: int | None = None) -> None:
        """Extend the lease now; that is done in the background too, three times a lease."""
        self._thread.run(self._core.ping(lease_ms))

    def status(self) -> str:
        """OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED."""
        return self._thread.run(self._core.status())

    def __enter__(self) -> ValueTransaction[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._core.__aexit__(kind, error, trace))


class TransactionalValueWriter(Generic[T]):
    """TransactionalEventWriter's methods, for values."""

    def __init__(self, thread: LoopThread, core: values.TransactionalValueWriter[T]) -> None:
        self._thread, self._core = thread, core

    def begin_txn(self, lease_ms: int | None = None) -> ValueTransaction[T]:
        """A new transaction, which times out if the controller hears nothing of it for the lease."""
        return ValueTransaction(self._thread, self._thread.run(self._core.begin_txn(lease_ms)))

    def get_txn(self, txn_id: UUID | str) -> ValueTransaction[T]:
        """A transaction begun elsewhere or earlier, by its id; see TransactionalEventWriter.get_txn."""
        return ValueTransaction(self._thread, self._thread.run(self._core.get_txn(txn_id)))

    def close(self) -> None:
        """Let go of the open transactions; each ends with its lease."""
        self._thread.run(self._core.close())

    def __enter__(self) -> TransactionalValueWriter[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ValueReader(Generic[T]):
    """SliceReader, for values; iterate over it for lists of ValueEvent, one list for each block."""

    def __init__(self, thread: LoopThread, core: values.ValueReader[T]) -> None:
        self._thread, self._core = thread, core

    def next_events(self, timeout: float | None = None) -> list[ValueEvent[T]] | None:
        """Some events of one segment, None at the end; RequestTimeoutError if nothing came in time."""
        return self._thread.run(self._core.next_events(timeout))

    def __iter__(self) -> Iterator[list[ValueEvent[T]]]:
        while True:
            events = self.next_events()
            if events is None:
                return
            yield events

    def position(self) -> StreamCut:
        """The boundary between what was given out and what was not; start there to go on."""
        cut: StreamCut = self._on_loop(self._core.position)
        return cut

    def current_time_window(self) -> TimeWindow:
        """In which event time `position()` stands; read from the stream's watermarks."""
        return self._thread.run(self._core.current_time_window())

    @property
    def skipped(self) -> list[DamagedDataError]:
        """As SliceReader's."""
        return list(self._core.skipped)

    def close(self) -> None:
        """End at once; who waits in `next_events` gets ClosedError."""
        try:
            self._on_loop(self._core.close)
        except ClosedError:
            pass  # the client, closed before, has closed this

    def _on_loop(self, call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return call()

        return self._thread.run(run())

    def __enter__(self) -> ValueReader[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Schemas:
    """The schemas of one stream; see nadi.client.serializers.registry.SchemaGroup."""

    def __init__(self, thread: LoopThread, core: SchemaGroup) -> None:
        self._thread, self._core = thread, core

    def register(self, serializer: SchemaSerializer[T]) -> int:
        """The id of the schema, which becomes the latest version if it isn't one; SchemaIncompatibleError."""
        return self._thread.run(self._core.register(serializer))

    def check(self, serializer: SchemaSerializer[T]) -> None:
        """SchemaIncompatibleError if the stream's rule forbids the schema; nothing is stored."""
        self._thread.run(self._core.check(serializer))

    def versions(self) -> list[SchemaVersion]:
        """All versions, oldest first."""
        return self._thread.run(self._core.versions())

    def version(self, schema_id: int) -> SchemaVersion:
        """UnknownSchemaError if there is none of that id."""
        return self._thread.run(self._core.version(schema_id))

    def definition(self, version: SchemaVersion) -> bytes:
        """The schema itself, as its serializer stored it."""
        return self._thread.run(self._core.definition(version))

    def compatibility(self) -> Compatibility:
        """The stream's rule; BACKWARD unless it was set."""
        return self._thread.run(self._core.compatibility())

    def set_compatibility(self, rule: Compatibility) -> None:
        """Set the rule for schemas registered from now on."""
        self._thread.run(self._core.set_compatibility(rule))

    def delete(self) -> None:
        """Forget all schemas and the rule, after the stream was deleted."""
        self._thread.run(self._core.delete())
