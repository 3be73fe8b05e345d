"""Reader and writer of index streams: records by offset, by a field's value, or in a range.

Records have a fixed size, start at its multiples, and no field ever decreases; so a value is found by binary search,
with a request for each step until the remaining range is small.

The writer stores each record atomically and in order after the last record. Appends are conditional on the stream's
end, as for byte streams: if another writer appends meanwhile, the writer fails instead of storing a record out of
order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from nadi.client.bytestream.byte_reader import ByteStreamReader
from nadi.client.bytestream.byte_writer import ByteStreamWriter
from nadi.client.control.arguments import checked
from nadi.client.control.closing import Closing
from nadi.client.indexstream.record import (
    RECORD_SIZE,
    RECORD_SIZE_ATTRIBUTE,
    Fields,
    IndexRecord,
    data_limit,
    decode,
    stated_size,
    whole_number,
)
from nadi.client.segments.info import resolving_missing, segment_info
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import REQUESTS, SegmentStores
from nadi.errors import ClosedError, ConditionFailedError, InvalidArgumentError, TruncatedError
from nadi.limits import BYTE_APPEND_BYTES, KIB
from nadi.naming import segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import Buffer


@checked()
class IndexWriter(Closing):
    """A writer of records, created by `StreamManager.create_index_writer`; not for concurrent use.

    It fails if no pending record is stored for `ack_timeout`.
    """

    def __init__(
        self, writer: ByteStreamWriter, reader: IndexReader, fields: Fields, record_size: int, last: IndexRecord | None
    ) -> None:
        self.scope, self.stream, self.segment_id = writer.scope, writer.stream, writer.segment_id
        self._writer, self._reader = writer, reader
        self._fields, self._record_size = fields, record_size
        self._last = tuple(value for _, value in last.hashed_fields) if last is not None else ()

    @property
    def record_size(self) -> int:
        """Size of each record in bytes."""
        return self._record_size

    @property
    def data_limit(self) -> int:
        """Maximum size of a record's data in bytes."""
        return data_limit(self._record_size, len(self._fields.names))

    def last(self) -> dict[str, int]:
        """Return the fields of the last record appended, or stored when the writer was created; {} if there is none."""
        return dict(zip(self._fields.names, self._last, strict=False))

    def tell(self) -> int:
        """Return the offset of the next record."""
        return self._writer.tell()

    async def append(
        self,
        fields: Mapping[str, int],
        data: Buffer = b"",
        *,
        after: Mapping[str, int] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Append a record, waiting while too many bytes are pending; return its offset.

        InvalidArgumentError unless each field has a whole number from 0 to 2^64 - 1, not below its last value. after:
        the expected fields of the last record (`{}` for none), else ConditionFailedError. EventTooLargeError if `data`
        exceeds `data_limit`; TypeError for anything but a buffer. Raises the error that prevented earlier records from
        being stored, and RequestTimeoutError after `timeout` s.
        """
        values = self._fields.values(fields)
        if after is not None and after != self.last():
            raise ConditionFailedError(
                f"the last record of {self.scope}/{self.stream} has {self.last()}, not {dict(after)}: "
                "read the stream, then decide"
            )
        for name, before, value in zip(self._fields.names, self._last, values, strict=False):
            if value < before:
                raise InvalidArgumentError(
                    f"{name} is {value} after {before}: fields of an index can't decrease, so append in order"
                )
        record = self._fields.encode(values, data, self._record_size)
        offset = self._writer.tell()
        await self._writer.write(record, timeout)
        self._last = values
        return offset

    async def flush(self, timeout: float | None = None) -> None:
        """Return once all records are on the server's disk; RequestTimeoutError after `timeout` s."""
        await self._writer.flush(timeout)

    async def truncate_before(self, field: str, value: int) -> int:
        """Delete the records before the first whose `field` is at least `value`; return its offset.

        Deletes all stored records if all have lower values.
        """
        offset = await self._reader.search(field, value)
        await self._writer.truncate_before(offset)
        return offset

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close; raises the error that prevented records from being stored."""
        await self._writer.close(timeout)

    async def close_and_seal(self, timeout: float | None = None) -> None:
        """Close and seal the stream: it can't be written to any more, and readers reach its end."""
        await self._writer.close_and_seal(timeout)


# --- for other modules of the client ----------------------------------------------------------


def bytes_of(writer: IndexWriter) -> ByteStreamWriter:
    return writer._writer


_REST_BYTES = 64 * KIB  # a search reads a smaller range completely, instead of record by record
_BUFFER_BYTES = 256 * KIB  # of records read at a time


@checked()
class IndexReader(Closing):
    """A reader of records, created by `StreamManager.create_index_reader`.

    Reads raise TruncatedError at truncated offsets, and SerializationError at bytes that aren't a record.
    """

    def __init__(
        self, stores: SegmentStores, scope: str, stream: str, segment_id: int, *, timeout: float | None
    ) -> None:
        self.scope, self.stream, self.segment_id = scope, stream, segment_id
        self._stores, self._segment, self._timeout = stores, segment_name(scope, stream, segment_id), timeout
        self._size: int | None = None  # record size stored with the stream, once known
        self._open: set[ByteStreamReader] = set()
        self._closed = False

    async def record_size(self) -> int:
        """Return the size of each record in bytes; 4,096 if the stream doesn't define it."""
        return await stored_record_size(self) or RECORD_SIZE

    async def head(self) -> int:
        """Return the offset of the first retained record."""
        return (await self._bounds())[0]

    async def tail(self) -> int:
        """Return the offset of the next record to be written."""
        return (await self._bounds())[1]

    async def first(self) -> IndexRecord | None:
        """Return the first retained record, or None."""
        while True:
            head, tail, size = await self._bounds()
            try:
                return await self._record(head, size) if head < tail else None
            except TruncatedError:
                continue  # truncated meanwhile: read the new first record

    async def last(self) -> IndexRecord | None:
        """Return the last record, or None."""
        while True:
            head, tail, size = await self._bounds()
            try:
                return await self._record(tail - size, size) if head < tail else None
            except TruncatedError:
                continue

    async def at(self, offset: int) -> IndexRecord:
        """Return the record at `offset`; InvalidArgumentError if no record starts there."""
        _, tail, size = await self._bounds()
        _check_offset(offset, size)
        if offset >= tail:
            raise InvalidArgumentError(f"no record starts at {offset:,}: the stream ends at {tail:,}")
        return await self._record(offset, size)

    async def search(self, field: str, value: int) -> int:
        """Return the offset of the first record whose `field` is at least `value`; the tail if all values are lower.

        Records without the field count as lower: new fields are added after the others. InvalidArgumentError if the
        last record doesn't have it either.
        """
        value = whole_number(field, value)
        head, tail, size = await self._bounds()
        low, high = head // size, tail // size
        remaining, begin = b"", 0  # the remaining range, once it is small
        while low < high:
            middle = (low + high) // 2
            offset = middle * size
            try:
                if not remaining and (high - low) * size <= _REST_BYTES:
                    begin = low * size
                    remaining = await self._bytes(begin, high * size)
                if remaining:
                    record = decode(remaining[offset - begin : offset - begin + size], offset)
                else:
                    record = await self._record(offset, size)
            except TruncatedError as gap:
                low = max(low + 1, -(-gap.start_offset // size))
                continue
            if record.has(field) and record.value(field) >= value:
                high = middle
            else:
                low = middle + 1
        if head < tail <= low * size and (last := await self.last()) is not None:
            last.value(field)
        return low * size

    async def read(
        self, start: int | None = None, end: int | None = None, *, follow: bool = False
    ) -> AsyncIterator[IndexRecord]:
        """Yield the records from `start`, or the head, up to `end`, or the tail.

        follow: wait for further records; RequestTimeoutError if none arrives within the reader's timeout.
        """
        for offset in (start, end):
            if offset is not None:
                _check_offset(offset, await self.record_size())
        self._check_open()
        head, tail, size = await self._bounds()
        start = head if start is None else start
        reader = ByteStreamReader(
            self._stores, self.scope, self.stream, self.segment_id, start, follow=follow, timeout=self._timeout
        )
        self._open.add(reader)
        try:
            if follow and tail == 0:  # a stream's record size may be set together with its first record
                await reader.readinto(bytearray(1))
                size = await self.record_size()
                await reader.seek(start)
            if not follow:
                end = tail if end is None else min(end, tail)
            buffer, filled = memoryview(bytearray(max(_BUFFER_BYTES // size, 1) * size)), 0
            while end is None or start < end:
                count = await reader.readinto(buffer[filled : None if end is None else end - start])
                if not count:
                    return
                filled += count
                complete = filled // size * size
                for at in range(0, complete, size):
                    yield decode(buffer[at : at + size], start)
                    start += size
                buffer[: filled - complete] = buffer[complete:filled]
                filled -= complete
        finally:
            self._open.discard(reader)
            await reader.close()

    async def close(self) -> None:
        """Close immediately; a pending read raises ClosedError."""
        self._closed = True
        for reader in tuple(self._open):
            await reader.close()

    async def _bounds(self) -> tuple[int, int, int]:
        """Return the start and end of complete records, and the record size."""
        self._check_open()
        async with resolving_missing(self._stores, self._segment):
            info = await segment_info(self._stores, self._segment)
        size = await self.record_size()
        head = -(-info.start_offset // size) * size
        return head, max(info.write_offset // size * size, head), size

    async def _record(self, offset: int, size: int) -> IndexRecord:
        return decode(await self._bytes(offset, offset + size), offset)

    async def _bytes(self, start: int, end: int) -> bytes:
        reading = read_bytes(self._stores, self._segment, start, end, purpose=REQUESTS)
        async with resolving_missing(self._stores, self._segment), aclosing(reading) as pieces:
            return b"".join([piece async for piece in pieces])

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the reader of {self.scope}/{self.stream} was closed")


def _check_offset(offset: int, size: int) -> None:
    if offset < 0 or offset % size:
        raise InvalidArgumentError(f"no record starts at {offset:,}: records start at multiples of {size:,}")


# --- for other modules of the client ----------------------------------------------------------


async def stored_record_size(reader: IndexReader) -> int | None:
    """Return the record size stored with the stream, or None."""
    if reader._size is None:
        request = wire.GetSegmentAttribute(0, reader._segment, RECORD_SIZE_ATTRIBUTE, "")
        size = stated_size((await reader._stores.ask(request, wire.SegmentAttribute)).value)
        if size is not None and not 0 < size <= BYTE_APPEND_BYTES:
            raise InvalidArgumentError(
                f"{reader.scope}/{reader.stream} has an invalid record size of {size:,} bytes: write to another stream"
            )
        reader._size = size
    return reader._size
