"""The blocking face of `structures`: what a StreamManager opens besides event streams."""

from __future__ import annotations

from nadi.client import aio
from nadi.client.blocking.byte_file import ByteStreamReader, ByteStreamWriter
from nadi.client.blocking.face import Face, opens, waits
from nadi.client.blocking.indexes import IndexReader, IndexWriter
from nadi.client.blocking.structures import (
    Journal,
    KeyValueTable,
    LeaderElection,
    SharedCounter,
    SharedMap,
    SharedSet,
    StateSynchronizer,
)
from nadi.client.control.arguments import check_timeout
from nadi.client.writing.sender import ACK_TIMEOUT_S


class Structures(Face[aio.StreamManager]):
    """The part of the blocking StreamManager that opens them."""

    create_byte_reader = opens(aio.StreamManager.create_byte_reader, ByteStreamReader)
    create_index_reader = opens(aio.StreamManager.create_index_reader, IndexReader)
    create_index_writer = opens(aio.StreamManager.create_index_writer, IndexWriter)
    create_key_value_table = waits(aio.StreamManager.create_key_value_table)
    delete_key_value_table = waits(aio.StreamManager.delete_key_value_table)
    list_key_value_tables = waits(aio.StreamManager.list_key_value_tables)
    key_value_table_configuration = waits(aio.StreamManager.key_value_table_configuration)
    key_value_table = opens(aio.StreamManager.key_value_table, KeyValueTable)
    state_synchronizer = opens(aio.StreamManager.state_synchronizer, StateSynchronizer)
    shared_map = opens(aio.StreamManager.shared_map, SharedMap)
    shared_set = opens(aio.StreamManager.shared_set, SharedSet)
    shared_counter = opens(aio.StreamManager.shared_counter, SharedCounter)
    journal = opens(aio.StreamManager.journal, Journal)
    leader_election = opens(aio.StreamManager.leader_election, LeaderElection)

    def create_byte_writer(
        self, scope: str, stream: str, *, timeout: float | None = None, ack_timeout: float = ACK_TIMEOUT_S
    ) -> ByteStreamWriter:
        """Open a file that writes at the current end of a stream of one segment.

        Its calls raise RequestTimeoutError if the data is not stored within `timeout` seconds; if nothing
        is stored for `ack_timeout` seconds, all calls do from then on.
        """
        check_timeout(timeout)
        core = self._thread.run(self._core.create_byte_writer(scope, stream, ack_timeout=ack_timeout))
        return ByteStreamWriter(self._thread, core, timeout)
