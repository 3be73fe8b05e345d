"""Index streams opened. The first writer says the record size in an attribute of the segment, as official ones do."""

from __future__ import annotations

from collections.abc import Sequence

from nadi.client.bytestream.byte_stream import only_segment
from nadi.client.bytestream.byte_writer import ByteStreamWriter
from nadi.client.indexstream.index_reader import IndexReader, stored_record_size
from nadi.client.indexstream.index_writer import IndexWriter
from nadi.client.indexstream.record import RECORD_SIZE, RECORD_SIZE_ATTRIBUTE, Fields, IndexRecord, data_limit
from nadi.client.segments.stores import SegmentStores
from nadi.errors import ConflictError, InvalidArgumentError
from nadi.limits import INDEX_RECORD_MAX_BYTES
from nadi.naming import segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION


async def open_index_reader(stores: SegmentStores, scope: str, stream: str, timeout: float | None) -> IndexReader:
    """A reader; InvalidArgumentError for a stream of several segments."""
    return IndexReader(stores, scope, stream, await only_segment(stores, scope, stream), timeout=timeout)


async def open_index_writer(
    stores: SegmentStores, writer: ByteStreamWriter, names: Sequence[str], record_size: int | None
) -> IndexWriter:
    """A writer behind the last record, where `writer` stands. InvalidArgumentError unless its fields are those of that
    record, or these and more behind them, and its record size the stream's."""
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
            f"{scope}/{stream} ends at {writer.tell():,}, within a record of {size:,} bytes: something else was "
            "written to it, so make another stream for the index"
        )
    last = await reader.last()
    _check_fields(fields, last, f"{scope}/{stream}")
    if stated is None:
        await _state(stores, segment_name(scope, stream, writer.segment_id), size)
    return IndexWriter(writer, reader, fields, size, last)


def _check_size(record_size: int | None, fields: Fields) -> None:
    least = -data_limit(0, len(fields.names))
    if record_size is not None and not least <= record_size <= INDEX_RECORD_MAX_BYTES:
        raise InvalidArgumentError(
            f"a record with {len(fields.names)} fields has {least:,} to {INDEX_RECORD_MAX_BYTES:,} bytes, "
            f"not {record_size:,}"
        )


def _check_fields(fields: Fields, last: IndexRecord | None, stream: str) -> None:
    before = tuple(name for name, _ in last.hashed_fields) if last is not None else ()
    if fields.hashes[: len(before)] != before:
        raise InvalidArgumentError(
            f"the last record of {stream} has {len(before)} fields, with which {', '.join(fields.names)} do not begin: "
            "name the same in the same order; new ones stand behind them"
        )


async def _state(stores: SegmentStores, segment: str, size: int) -> None:
    update = wire.UpdateSegmentAttribute(0, segment, RECORD_SIZE_ATTRIBUTE, size, NO_VERSION, "")
    reply = await stores.ask(update, wire.SegmentAttributeUpdated)
    if reply.success:
        return
    asked = wire.GetSegmentAttribute(0, segment, RECORD_SIZE_ATTRIBUTE, "")  # a repeated request finds its own
    found = (await stores.ask(asked, wire.SegmentAttribute)).value
    if found != size:
        raise ConflictError(
            f"another writer of {segment} has just chosen records of {found:,} bytes: open this one anew"
        )
