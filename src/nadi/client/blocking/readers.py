"""The blocking faces of readers without a group, and of what their serializers register."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from nadi.client import aio
from nadi.client.blocking.face import Closing, Face, by_hand, described, ends, on_loop, waits
from nadi.client.reading.reader import give_out, held_block
from nadi.client.serializers.values import ValueEvent, parts_of, values_of
from nadi.errors import DamagedDataError
from nadi.model.event import EventBlock

T = TypeVar("T")


@described(aio.SliceReader)
class SliceReader(Closing[aio.SliceReader]):
    """See nadi.client.aio.SliceReader."""

    position = on_loop(aio.SliceReader.position)
    current_time_window = waits(aio.SliceReader.current_time_window)
    close = ends(on_loop(aio.SliceReader.close))

    @by_hand(aio.SliceReader.next_block)
    def next_block(self, timeout: float | None = None) -> tuple[int, EventBlock] | None:
        found = self._thread.run(held_block(self._core, timeout))
        give_out(self._core)
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

    @by_hand(aio.ValueReader[T].next_events)
    def next_events(self, timeout: float | None = None) -> list[ValueEvent[T]] | None:
        reader, decoder = parts_of(self._core)
        found = self._thread.run(held_block(reader, timeout))
        if found is None:
            return None
        segment_id, block = found
        payloads = block.events()
        decode = decoder.at_hand(payloads) or self._thread.run(decoder.prepare(payloads))
        give_out(reader)
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
