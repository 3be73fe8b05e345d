"""The blocking faces of readers without a group, and of what their serializers register."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from nadi.client import aio
from nadi.client.blocking.face import Closing, Face, by_hand, described, ends, on_loop, waits
from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.reading.lending import Lending
from nadi.client.reading.reader import is_closed, lend, look, nothing_for
from nadi.client.serializers.values import ValueEvent
from nadi.errors import ClosedError, DamagedDataError
from nadi.model.event import EventBlock

T = TypeVar("T")


@described(aio.SliceReader)
class SliceReader(Closing[aio.SliceReader]):
    """See nadi.client.aio.SliceReader."""

    position = on_loop(aio.SliceReader.position)
    current_time_window = waits(aio.SliceReader.current_time_window)
    close = ends(on_loop(aio.SliceReader.close))

    def __init__(self, thread: LoopThread, core: aio.SliceReader) -> None:
        super().__init__(thread, core)
        self._lending: Lending[Any] = Lending()
        self._asks = True  # before the first block, and after an end or an error

    @by_hand(aio.SliceReader.next_block)
    def next_block(self, timeout: float | None = None) -> tuple[int, EventBlock] | None:
        if is_closed(self._core):
            raise ClosedError("this reader was closed")
        if self._asks:
            self._thread.call(lend, self._core, self._lending)
            self._asks = False
        try:
            found = self._lending.take(timeout)
        except TimeoutError:
            raise nothing_for(self._core, timeout) from None
        if isinstance(found, tuple):
            if self._lending.wants_word:
                self._thread.call(look, self._core)
            return found
        self._asks = True
        if found is not None:
            raise found
        return None

    def __iter__(self) -> Iterator[tuple[int, EventBlock]]:
        while (found := self.next_block()) is not None:
            yield found

    @property
    def skipped(self) -> list[DamagedDataError]:
        """With on_damage="skip": the last 1,000 damaged places that were skipped."""
        return self._core.skipped


@described(aio.ValueReader)
class ValueReader(Closing[aio.ValueReader[T]], Generic[T]):
    """See nadi.client.aio.ValueReader."""

    next_events = waits(aio.ValueReader[T].next_events)
    position = on_loop(aio.ValueReader[T].position)
    current_time_window = waits(aio.ValueReader[T].current_time_window)
    close = ends(on_loop(aio.ValueReader[T].close))

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
