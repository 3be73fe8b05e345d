"""The blocking faces of readers without a group, and of what their serializers register."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from nadi.client import aio
from nadi.client.blocking.face import Closing, Face, by_hand, described, ends, on_loop, waits
from nadi.client.control.loop_thread import LoopThread
from nadi.client.reading.lending import Lending
from nadi.client.reading.reader import is_closed, lend, look, nothing_for
from nadi.client.serializers.values import ValueEvent, decoder_of, reader_of, values_of
from nadi.errors import ClosedError, DamagedDataError
from nadi.model.event import EventBlock

T = TypeVar("T")


class _Blocks:
    """Takes the blocks that are lent to this thread."""

    def __init__(self, thread: LoopThread, core: aio.SliceReader) -> None:
        self._thread, self._core = thread, core
        self._lending: Lending[Any] = Lending()
        self._asks = True  # before the first block, and after an end or an error
        self._next: tuple[int, EventBlock] | None = None

    def next(self, timeout: float | None) -> tuple[int, EventBlock] | None:
        if is_closed(self._core):
            raise ClosedError("this reader was closed")
        if self._next is not None:
            return self._next
        self._thread.check()
        if self._asks:
            self._thread.call(lend, self._core, self._lending)
            self._asks = False
        try:
            found = self._lending.get(timeout)
        except TimeoutError:
            raise nothing_for(self._core, timeout) from None
        if isinstance(found, tuple):
            self._next = found
            return found
        self._asks = True
        if found is not None:
            raise found
        return None

    def take(self) -> None:
        self._next = None
        self._lending.count()
        if self._lending.wants_word:
            self._thread.call(look, self._core)


@described(aio.SliceReader)
class SliceReader(Closing[aio.SliceReader]):
    """See nadi.client.aio.SliceReader."""

    position = on_loop(aio.SliceReader.position)
    current_time_window = waits(aio.SliceReader.current_time_window)
    close = ends(on_loop(aio.SliceReader.close))

    def __init__(self, thread: LoopThread, core: aio.SliceReader) -> None:
        super().__init__(thread, core)
        self._blocks = _Blocks(thread, core)

    @by_hand(aio.SliceReader.next_block)
    def next_block(self, timeout: float | None = None) -> tuple[int, EventBlock] | None:
        found = self._blocks.next(timeout)
        if found is not None:
            self._blocks.take()
        return found

    def __iter__(self) -> Iterator[tuple[int, EventBlock]]:
        while (found := self.next_block()) is not None:
            yield found

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """What comes up to the end, for whatever reads Arrow: the columns event, segment_id and offset."""
        import pyarrow as pa

        schema = pa.schema({"event": pa.binary(), "segment_id": pa.int64(), "offset": pa.int64()})
        batches = (
            block.to_arrow().add_column(1, schema.field(1), pa.repeat(pa.scalar(segment_id, pa.int64()), len(block)))
            for segment_id, block in self
        )
        return pa.RecordBatchReader.from_batches(schema, batches).__arrow_c_stream__(requested_schema)

    @property
    def skipped(self) -> list[DamagedDataError]:
        """With on_damage="skip": the last 1,000 damaged places that were skipped."""
        return self._core.skipped


@described(aio.ValueReader)
class ValueReader(Closing[aio.ValueReader[T]], Generic[T]):
    """See nadi.client.aio.ValueReader."""

    position = on_loop(aio.ValueReader[T].position)
    current_time_window = waits(aio.ValueReader[T].current_time_window)
    close = ends(on_loop(aio.ValueReader[T].close))

    def __init__(self, thread: LoopThread, core: aio.ValueReader[T]) -> None:
        super().__init__(thread, core)
        self._blocks = _Blocks(thread, reader_of(core))
        self._decoder = decoder_of(core)

    @by_hand(aio.ValueReader[T].next_events)
    def next_events(self, timeout: float | None = None) -> list[ValueEvent[T]] | None:
        found = self._blocks.next(timeout)
        if found is None:
            return None
        segment_id, block = found
        payloads = block.events()
        decode = self._decoder.at_hand(payloads) or self._thread.run(self._decoder.prepare(payloads))
        self._blocks.take()
        return values_of(segment_id, block, payloads, decode)

    def __iter__(self) -> Iterator[list[ValueEvent[T]]]:
        while (events := self.next_events()) is not None:
            yield events

    @property
    def skipped(self) -> list[DamagedDataError]:
        """With on_damage="skip": the last 1,000 damaged places that were skipped."""
        return self._core.skipped


@described(aio.SchemaGroup)
class Schemas(Face[aio.SchemaGroup]):
    """See nadi.client.aio.SchemaGroup."""

    register = waits(aio.SchemaGroup.register)
    check = waits(aio.SchemaGroup.check)
    versions = waits(aio.SchemaGroup.versions)
    version = waits(aio.SchemaGroup.version)
    definition = waits(aio.SchemaGroup.definition)
    compatibility = waits(aio.SchemaGroup.compatibility)
    set_compatibility = waits(aio.SchemaGroup.set_compatibility)
    delete = waits(aio.SchemaGroup.delete)
