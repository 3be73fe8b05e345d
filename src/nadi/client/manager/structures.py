"""The part of StreamManager that opens byte and index streams, key-value tables and shared state.

A byte stream is a one-segment stream of plain bytes, without events, as in the official clients. Offsets count from the
first byte ever written, so truncation doesn't change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from nadi.client.bytestream import byte_reader, byte_writer
from nadi.client.bytestream.byte_reader import READ_TIMEOUT_S, ByteStreamReader
from nadi.client.bytestream.byte_writer import ByteStreamWriter
from nadi.client.control.arguments import checked
from nadi.client.control.policy import FIXED, KeyValueTableConfiguration
from nadi.client.indexstream.index_reader import IndexReader, IndexWriter, stored_record_size
from nadi.client.indexstream.record import RECORD_SIZE, RECORD_SIZE_ATTRIBUTE, Fields, IndexRecord, data_limit
from nadi.client.reading.boundary import check_cut
from nadi.client.segments.info import segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.client.state_sync import shared_state as shared
from nadi.client.state_sync.revisioned_stream import RevisionedStream, open_revisioned_stream
from nadi.client.state_sync.shared_state import (
    Journal,
    LeaderElection,
    SharedCounter,
    SharedMap,
    SharedSet,
    election_kind,
)
from nadi.client.state_sync.state_synchronizer import StateKind, StateSynchronizer
from nadi.client.tables.key_value_table import KeyValueTable
from nadi.errors import ClosedError, ConflictError, InvalidArgumentError, InvalidStreamCutError, StreamSealedError
from nadi.limits import INDEX_RECORD_MAX_BYTES
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION


async def open_byte_writer(
    stores: SegmentStores, scope: str, stream: str, ack_timeout: float | None = None
) -> ByteStreamWriter:
    """Open a writer at the stream's current end; InvalidArgumentError for a stream with a scaling policy."""
    if (await stores.controller.stream_configuration(scope, stream)).scaling.kind != FIXED:
        raise InvalidArgumentError(
            f"{scope}/{stream} scales with its load, but a byte stream must have one segment: "
            "update its scaling to ScalingPolicy.fixed(1)"
        )
    current = await stores.controller.current_segments(scope, stream)
    if not current:
        raise StreamSealedError(f"{scope}/{stream}")
    segment_id = _only(scope, stream, [piece.segment_id for piece in current])
    segment = segment_name(scope, stream, segment_id)
    info = await segment_info(stores, segment)
    return ByteStreamWriter(stores, scope, stream, segment_id, info.write_offset, stores.ack_timeout_s(ack_timeout))


async def open_byte_reader(
    stores: SegmentStores, scope: str, stream: str, *, start: int | None, follow: bool, timeout: float | None
) -> ByteStreamReader:
    segment_id = await only_segment(stores, scope, stream)
    reader = ByteStreamReader(stores, scope, stream, segment_id, 0, follow=follow, timeout=timeout)
    await reader.seek(await reader.head() if start is None else start)
    return reader


async def only_segment(stores: SegmentStores, scope: str, stream: str) -> int:
    """Return the segment at the stream's head; InvalidArgumentError if there are several."""
    return _only(scope, stream, list((await stores.controller.head(scope, stream)).positions))


def _only(scope: str, stream: str, segment_ids: list[int]) -> int:
    if len(segment_ids) != 1:
        raise InvalidArgumentError(
            f"{scope}/{stream} has {len(segment_ids)} segments, but a byte stream must have one: "
            "create a stream with one segment and without scaling"
        )
    return segment_ids[0]


async def open_index_writer(
    stores: SegmentStores, writer: ByteStreamWriter, names: Sequence[str], record_size: int | None
) -> IndexWriter:
    """Open an index writer at `writer`'s position, after the last record.

    InvalidArgumentError unless its fields start with the last record's, and its record size matches the stream's.
    """
    fields = Fields(names)
    _check_size(record_size, fields)
    scope, stream = writer.scope, writer.stream
    reader = IndexReader(stores, scope, stream, writer.segment_id, timeout=None)
    stated = await stored_record_size(reader)
    size = stated or record_size or RECORD_SIZE
    if record_size not in (None, size):
        raise InvalidArgumentError(
            f"records of {scope}/{stream} have {size:,} bytes, not {record_size:,}: leave out record_size"
        )
    if data_limit(size, len(fields.names)) < 0:
        raise InvalidArgumentError(
            f"records of {scope}/{stream} have {size:,} bytes, too few for {len(fields.names)} fields"
        )
    if writer.tell() % size:
        raise InvalidArgumentError(
            f"{scope}/{stream} ends at {writer.tell():,}, which isn't a multiple of the record size {size:,}: it "
            "contains other data, so create another stream for the index"
        )
    last = await reader.last()
    _check_fields(fields, last, f"{scope}/{stream}")
    if stated is None:
        await _store_record_size(stores, segment_name(scope, stream, writer.segment_id), size)
    return IndexWriter(writer, reader, fields, size, last)


def _check_size(record_size: int | None, fields: Fields) -> None:
    least = -data_limit(0, len(fields.names))
    if record_size is not None and not least <= record_size <= INDEX_RECORD_MAX_BYTES:
        raise InvalidArgumentError(
            f"a record with {len(fields.names)} fields must have {least:,} to {INDEX_RECORD_MAX_BYTES:,} bytes, "
            f"not {record_size:,}"
        )


def _check_fields(fields: Fields, last: IndexRecord | None, stream: str) -> None:
    before = tuple(name for name, _ in last.hashed_fields) if last is not None else ()
    if fields.hashes[: len(before)] != before:
        raise InvalidArgumentError(
            f"{', '.join(fields.names)} don't start with the {len(before)} fields of the last record of {stream}: "
            "pass these fields in the same order, and new ones after them"
        )


async def _store_record_size(stores: SegmentStores, segment: str, size: int) -> None:
    update = wire.UpdateSegmentAttribute(0, segment, RECORD_SIZE_ATTRIBUTE, size, NO_VERSION, "")
    reply = await stores.ask(update, wire.SegmentAttributeUpdated)
    if reply.success:
        return
    request = wire.GetSegmentAttribute(0, segment, RECORD_SIZE_ATTRIBUTE, "")  # a repeated request finds its own value
    stored = (await stores.ask(request, wire.SegmentAttribute)).value
    if stored != size:
        raise ConflictError(f"another writer of {segment} set the record size to {stored:,}: open this writer again")


S = TypeVar("S")
U = TypeVar("U")


@checked()
class Structures:
    """The part of StreamManager for structures; everything it opened is closed with the client."""

    _stores: SegmentStores

    def __init__(self) -> None:
        self._byte_writers: list[ByteStreamWriter] = []
        self._byte_readers: list[ByteStreamReader] = []
        self._index_readers: WeakSet[IndexReader] = WeakSet()

    async def _end_structures(self) -> None:
        for writer in self._byte_writers:
            name = f"{writer.scope}/{writer.stream}"
            byte_writer.stop(writer, ClosedError(f"the writer of {name} was closed with its client"))
        for reader in self._byte_readers:
            await reader.close()
        for index_reader in tuple(self._index_readers):
            await index_reader.close()

    # --- byte streams -----------------------------------------------------------------------

    async def create_byte_writer(
        self, scope: str, stream: str, *, ack_timeout: float | None = None
    ) -> ByteStreamWriter:
        """Create a writer of plain bytes at the current end of a one-segment stream.

        It fails if nothing is stored for `ack_timeout` seconds.
        """
        writer = await open_byte_writer(self._stores, scope, stream, ack_timeout)
        self._byte_writers = [existing for existing in self._byte_writers if not byte_writer.is_closed(existing)]
        self._byte_writers.append(writer)
        return writer

    async def create_byte_reader(
        self,
        scope: str,
        stream: str,
        *,
        start: int | None = None,
        follow: bool = False,
        timeout: float | None = READ_TIMEOUT_S,
    ) -> ByteStreamReader:
        """Create a reader of plain bytes from offset `start`, or from the head.

        At the tail it reports end of file, and can continue later; with `follow` it waits for more. A read raises
        RequestTimeoutError after `timeout` seconds without data.
        """
        reader = await open_byte_reader(self._stores, scope, stream, start=start, follow=follow, timeout=timeout)
        self._byte_readers = [existing for existing in self._byte_readers if not byte_reader.is_closed(existing)]
        self._byte_readers.append(reader)
        return reader

    # --- index streams ----------------------------------------------------------------------

    async def create_index_writer(
        self,
        scope: str,
        stream: str,
        fields: Sequence[str],
        *,
        record_size: int | None = None,
        ack_timeout: float | None = None,
    ) -> IndexWriter:
        """Create a writer of records with these fields, at the end of a one-segment stream.

        The first writer sets the stream's record size: up to 65,536 bytes, by default 4,096. Later writers omit it or
        pass the same size, and pass the same fields in the same order, with new fields after them. The writer fails if
        nothing is stored for `ack_timeout` seconds.
        """
        bytes_writer = await self.create_byte_writer(scope, stream, ack_timeout=ack_timeout)
        try:
            return await open_index_writer(self._stores, bytes_writer, fields, record_size)
        except BaseException:
            byte_writer.stop(bytes_writer, ClosedError(f"creating an index writer of {scope}/{stream} failed"))
            raise

    async def create_index_reader(
        self, scope: str, stream: str, *, timeout: float | None = READ_TIMEOUT_S
    ) -> IndexReader:
        """Create a reader of the records of an index stream.

        When following the tail, it raises RequestTimeoutError after `timeout` seconds without records.
        """
        segment_id = await only_segment(self._stores, scope, stream)
        reader = IndexReader(self._stores, scope, stream, segment_id, timeout=timeout)
        self._index_readers.add(reader)
        return reader

    # --- key-value tables -------------------------------------------------------------------

    async def create_key_value_table(self, scope: str, table: str, config: KeyValueTableConfiguration) -> bool:
        """Create a key-value table; return False if it already exists, whatever its configuration."""
        return await self._stores.controller.create_key_value_table(scope, table, config)

    async def delete_key_value_table(self, scope: str, table: str) -> bool:
        """Delete a key-value table and its contents; return False if it doesn't exist."""
        return await self._stores.controller.delete_key_value_table(scope, table)

    async def list_key_value_tables(self, scope: str) -> list[str]:
        """Return the names of the scope's key-value tables."""
        return await self._stores.controller.list_key_value_tables(scope)

    async def key_value_table_configuration(self, scope: str, table: str) -> KeyValueTableConfiguration:
        """Return the configuration with which the table was created; KeyValueTableNotFoundError."""
        return await self._stores.controller.key_value_table_configuration(scope, table)

    async def key_value_table(self, scope: str, table: str) -> KeyValueTable:
        """Open a table created by `create_key_value_table`."""
        config = await self._stores.controller.key_value_table_configuration(scope, table)
        partitions = await self._stores.controller.partitions(scope, table)
        return KeyValueTable(self._stores, scope, table, config, partitions)

    # --- shared state -----------------------------------------------------------------------

    async def revisioned_stream(self, scope: str, stream: str) -> RevisionedStream:
        """Open a one-segment stream as records with conditional appends."""
        return await open_revisioned_stream(self._stores, scope, stream)

    async def state_synchronizer(
        self, scope: str, stream: str, kind: StateKind[S, U], *, as_of: StreamCut | None = None
    ) -> StateSynchronizer[S, U]:
        """Open shared state of any kind, stored in a one-segment stream; with `as_of`, as it was at that cut."""
        check_cut(as_of, scope, stream)
        log = await open_revisioned_stream(self._stores, scope, stream)
        revision = None
        if as_of is not None:
            revision = as_of.positions.get(log.segment_id)
            if revision is None or len(as_of.positions) != 1:
                raise InvalidStreamCutError(f"the cut must contain exactly the segment of {scope}/{stream}")
        synchronizer = StateSynchronizer(log, kind, as_of=revision)
        await synchronizer.refresh()
        return synchronizer

    async def shared_map(
        self, scope: str, stream: str, *, value_type: Any = Any, as_of: StreamCut | None = None
    ) -> SharedMap[Any]:
        """Open a map from strings to values of `value_type`, any type that msgspec supports."""
        try:
            kind = shared.map_kind(value_type)
        except TypeError as error:
            raise InvalidArgumentError(f"value_type must be a type, not {value_type!r:.60}: {error}") from error
        return SharedMap(await self.state_synchronizer(scope, stream, kind, as_of=as_of))

    async def shared_set(self, scope: str, stream: str, *, as_of: StreamCut | None = None) -> SharedSet[Any]:
        """Open a set of strings, integers or bytes, stored in a one-segment stream."""
        return SharedSet(await self.state_synchronizer(scope, stream, shared.set_kind(), as_of=as_of))

    async def shared_counter(self, scope: str, stream: str, *, as_of: StreamCut | None = None) -> SharedCounter:
        """Open a shared 64-bit counter, stored in a one-segment stream."""
        return SharedCounter(await self.state_synchronizer(scope, stream, shared.counter_kind(), as_of=as_of))

    async def journal(self, scope: str, stream: str, *, as_of: StreamCut | None = None) -> Journal:
        """Open a journal, stored in a one-segment stream: entries with fixed indexes, in the same order for all."""
        return Journal(await self.state_synchronizer(scope, stream, shared.journal_kind(), as_of=as_of))

    async def leader_election(
        self, scope: str, stream: str, participant: str, *, as_of: StreamCut | None = None
    ) -> LeaderElection:
        """Join a leader election as `participant`, a display name."""
        synchronizer = await self.state_synchronizer(scope, stream, election_kind(), as_of=as_of)
        return LeaderElection(synchronizer, participant)
