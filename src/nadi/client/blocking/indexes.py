"""The blocking face of index streams."""

from __future__ import annotations

from nadi.client import aio
from nadi.client.blocking.face import Closing, by_hand, described, each, ends, same, waits
from nadi.client.bytestream.byte_writer import check_lost, is_closed
from nadi.client.indexstream.index_writer import bytes_of


@described(aio.IndexReader)
class IndexReader(Closing[aio.IndexReader]):
    """See nadi.client.aio.IndexReader."""

    record_size = waits(aio.IndexReader.record_size)
    head = waits(aio.IndexReader.head)
    tail = waits(aio.IndexReader.tail)
    first = waits(aio.IndexReader.first)
    last = waits(aio.IndexReader.last)
    at = waits(aio.IndexReader.at)
    search = waits(aio.IndexReader.search)
    read = each(aio.IndexReader.read)
    close = ends(waits(aio.IndexReader.close))


@described(aio.IndexWriter)
class IndexWriter(Closing[aio.IndexWriter]):
    """See nadi.client.aio.IndexWriter."""

    last = same(aio.IndexWriter.last)
    tell = same(aio.IndexWriter.tell)
    append = waits(aio.IndexWriter.append)
    flush = waits(aio.IndexWriter.flush)
    truncate_before = waits(aio.IndexWriter.truncate_before)
    close_and_seal = waits(aio.IndexWriter.close_and_seal)

    @property
    def record_size(self) -> int:
        """How many bytes each record of the stream has."""
        return self._core.record_size

    @property
    def data_limit(self) -> int:
        """How many bytes of data a record can have."""
        return self._core.data_limit

    @by_hand(aio.IndexWriter.close)
    def close(self, timeout: float | None = None) -> None:
        """See nadi.client.aio.IndexWriter.close."""
        if is_closed(bytes_of(self._core)):  # perhaps with the client, whose thread is no more
            check_lost(bytes_of(self._core))
        else:
            self._thread.run(self._core.close(timeout))
