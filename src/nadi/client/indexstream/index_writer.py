"""Writing an index stream: records whose fields never fall, each stored whole and in order.

It goes on behind the last record, as a byte stream's writer does: every append is conditional on the stream's end, so
if somebody else writes meanwhile, it fails instead of storing a record that would be out of order.
"""

from __future__ import annotations

from collections.abc import Mapping

from nadi.client.bytestream.byte_writer import ByteStreamWriter
from nadi.client.control.arguments import checked
from nadi.client.control.closing import Closing
from nadi.client.indexstream.index_reader import IndexReader
from nadi.client.indexstream.record import Fields, IndexRecord, data_limit
from nadi.errors import ConditionFailedError, InvalidArgumentError
from nadi.wire.fields import Buffer


@checked()
class IndexWriter(Closing):
    """Made by `StreamManager.create_index_writer`; one user at a time. Where nothing is stored for `ack_timeout`, it
    fails."""

    def __init__(
        self, writer: ByteStreamWriter, reader: IndexReader, fields: Fields, record_size: int, last: IndexRecord | None
    ) -> None:
        self.scope, self.stream, self.segment_id = writer.scope, writer.stream, writer.segment_id
        self._writer, self._reader = writer, reader
        self._fields, self._record_size = fields, record_size
        self._last = tuple(value for _, value in last.hashed_fields) if last is not None else ()

    @property
    def record_size(self) -> int:
        """How many bytes each record of the stream has."""
        return self._record_size

    @property
    def data_limit(self) -> int:
        """How many bytes of data a record can have."""
        return data_limit(self._record_size, len(self._fields.names))

    def last(self) -> dict[str, int]:
        """Return the fields of the last record that was appended, or found when the writer was made; none at first."""
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
        """Append a record, waiting while too much is not stored yet; return its offset.

        Each field has a whole number from 0 to 2^64 - 1, not less than in the last record: else InvalidArgumentError.
        `after`: only if these are the fields of the last record (`{}`: if there is none), else ConditionFailedError.
        EventTooLargeError if `data` is more than `data_limit`; TypeError for anything but a buffer. Raises what
        kept earlier records from being stored, and RequestTimeoutError after `timeout` s.
        """
        values = self._fields.values(fields)
        if after is not None and after != self.last():
            raise ConditionFailedError(
                f"the last record of {self.scope}/{self.stream} has {self.last()}, not {dict(after)}: "
                "look at what was written, then decide"
            )
        for name, before, value in zip(self._fields.names, self._last, values, strict=False):
            if value < before:
                raise InvalidArgumentError(
                    f"{name} is {value} after {before}, and fields of an index never fall: append in order"
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
        """Delete the records before the first whose `field` is `value` or more; return its offset.

        All that are stored if it is less in all of them.
        """
        offset = await self._reader.search(field, value)
        await self._writer.truncate_before(offset)
        return offset

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close; raise whatever kept records from being stored."""
        await self._writer.close(timeout)

    async def close_and_seal(self, timeout: float | None = None) -> None:
        """Close and seal the stream: nobody can write to it any more, and readers reach its end."""
        await self._writer.close_and_seal(timeout)


# --- what the rest of the client asks of it ---------------------------------------------------


def bytes_of(writer: IndexWriter) -> ByteStreamWriter:
    """What writes its records' bytes."""
    return writer._writer
