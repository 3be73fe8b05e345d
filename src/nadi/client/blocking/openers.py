"""The blocking face of `structures`: what a StreamManager opens besides event streams."""

from __future__ import annotations

from typing import Any, TypeVar

from nadi.client import aio
from nadi.client.blocking import structures as faces
from nadi.client.blocking.byte_file import ByteStreamReader, ByteStreamWriter
from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.bytestream.byte_stream import READ_TIMEOUT_S
from nadi.client.control.arguments import check_timeout
from nadi.client.shared.state_synchronizer import StateKind
from nadi.client.tables.key_value_registry import KeyValueTableConfiguration
from nadi.client.writing.writer import ACK_TIMEOUT_S
from nadi.model.streamcut import StreamCut

S = TypeVar("S")
U = TypeVar("U")


class Structures:
    """The part of the blocking StreamManager that opens them."""

    _thread: LoopThread
    _core: aio.StreamManager

    # --- byte streams -----------------------------------------------------------------------

    def create_byte_writer(
        self, scope: str, stream: str, *, timeout: float | None = None, ack_timeout: float = ACK_TIMEOUT_S
    ) -> ByteStreamWriter:
        """A file that writes at the present end of a stream of one segment.

        Its calls raise RequestTimeoutError if what was written is not stored within `timeout` seconds; where nothing
        of it is stored for `ack_timeout` seconds, they all do from then on.
        """
        check_timeout(timeout)
        core = self._thread.run(self._core.create_byte_writer(scope, stream, ack_timeout=ack_timeout))
        return ByteStreamWriter(self._thread, core, timeout)

    def create_byte_reader(
        self,
        scope: str,
        stream: str,
        *,
        start: int | None = None,
        follow: bool = False,
        timeout: float | None = READ_TIMEOUT_S,
    ) -> ByteStreamReader:
        """A file that reads from offset `start`, or from the head.

        At the tail it ends, as a file does, and reads on later if there is more by then; with `follow` it
        waits there. A read that gets nothing for `timeout` seconds raises RequestTimeoutError.
        """
        core = self._thread.run(
            self._core.create_byte_reader(scope, stream, start=start, follow=follow, timeout=timeout)
        )
        return ByteStreamReader(self._thread, core)

    # --- key-value tables -------------------------------------------------------------------

    def create_key_value_table(self, scope: str, table: str, config: KeyValueTableConfiguration) -> bool:
        """False if it existed, whatever its configuration."""
        return self._thread.run(self._core.create_key_value_table(scope, table, config))

    def delete_key_value_table(self, scope: str, table: str) -> bool:
        """Delete it with all that it holds; False if there was none."""
        return self._thread.run(self._core.delete_key_value_table(scope, table))

    def list_key_value_tables(self, scope: str) -> list[str]:
        """The names of the scope's key-value tables."""
        return self._thread.run(self._core.list_key_value_tables(scope))

    def key_value_table_configuration(self, scope: str, table: str) -> KeyValueTableConfiguration:
        """What it was created with; KeyValueTableNotFoundError if there is none."""
        return self._thread.run(self._core.key_value_table_configuration(scope, table))

    def key_value_table(self, scope: str, table: str) -> faces.KeyValueTable:
        """The table, which `create_key_value_table` must have made."""
        return faces.KeyValueTable(self._thread, self._thread.run(self._core.key_value_table(scope, table)))

    # --- shared state -----------------------------------------------------------------------

    def state_synchronizer(
        self, scope: str, stream: str, kind: StateKind[S, U], *, as_of: StreamCut | None = None
    ) -> faces.StateSynchronizer[S, U]:
        """Shared state of any kind, kept in a stream of one segment; with `as_of`, as it was at that cut."""
        core = self._thread.run(self._core.state_synchronizer(scope, stream, kind, as_of=as_of))
        return faces.StateSynchronizer(self._thread, core)

    def shared_map(
        self, scope: str, stream: str, *, value_type: Any = Any, as_of: StreamCut | None = None
    ) -> faces.SharedMap[Any]:
        """A map of text to values of `value_type` (any that msgspec knows)."""
        core = self._thread.run(self._core.shared_map(scope, stream, value_type=value_type, as_of=as_of))
        return faces.SharedMap(self._thread, core)

    def shared_set(self, scope: str, stream: str, *, as_of: StreamCut | None = None) -> faces.SharedSet[Any]:
        """A set of texts, integers or bytes, kept in a stream of one segment."""
        return faces.SharedSet(self._thread, self._thread.run(self._core.shared_set(scope, stream, as_of=as_of)))

    def shared_counter(self, scope: str, stream: str, *, as_of: StreamCut | None = None) -> faces.SharedCounter:
        """An integer of 64 bits that many add to, kept in a stream of one segment."""
        core = self._thread.run(self._core.shared_counter(scope, stream, as_of=as_of))
        return faces.SharedCounter(self._thread, core)

    def journal(self, scope: str, stream: str, *, as_of: StreamCut | None = None) -> faces.Journal:
        """Entries in one order for everybody, with indexes that never change, kept in a stream of one segment."""
        return faces.Journal(self._thread, self._thread.run(self._core.journal(scope, stream, as_of=as_of)))

    def leader_election(
        self, scope: str, stream: str, participant: str, *, as_of: StreamCut | None = None
    ) -> faces.LeaderElection:
        """Take part as `participant`, a name for people to read."""
        core = self._thread.run(self._core.leader_election(scope, stream, participant, as_of=as_of))
        return faces.LeaderElection(self._thread, core)
