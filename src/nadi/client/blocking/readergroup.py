"""The blocking face of reader groups.

A reader takes events from the block in hand in the caller's own thread, and asks the client's loop thread for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from nadi.client import aio
from nadi.client.blocking.face import Face, by_hand, described, each, ends, on_loop, opens, overloaded, waits
from nadi.client.control.loop_thread import LoopThread
from nadi.client.readergroup.event_reads import EventRead, Reading, give_out, held_read, next_ready_of
from nadi.client.readergroup.group import GroupReaderOptions
from nadi.client.readergroup.values import ValueRead
from nadi.client.serializers.plain import Serializer
from nadi.errors import NadiError
from nadi.limits import NOTEBOOK_ASKS_S
from nadi.model.reports import GroupLagReport

R = TypeVar("R", bound=EventRead | ValueRead[Any])
T = TypeVar("T")


class _Reader(Face[Reading[R]]):
    positions = on_loop(Reading[R].positions)
    current_time_window = waits(Reading[R].current_time_window)
    close = ends(waits(Reading[R].close))

    def __init__(self, thread: LoopThread, core: Reading[R]) -> None:
        super().__init__(thread, core)
        self._next_ready = next_ready_of(core)

    @property
    def name(self) -> str:
        """The reader's id in its group."""
        return self._core.name

    @by_hand(Reading[R].read_next_event)
    def read_next_event(self, timeout: float | None = None) -> R | None:
        found = self._next_ready()
        return found if found is not None else self._read(timeout, is_whole=False)

    @by_hand(Reading[R].read_next_block)
    def read_next_block(self, timeout: float | None = None) -> R | None:
        return self._read(timeout, is_whole=True)

    def _read(self, timeout: float | None, *, is_whole: bool) -> R | None:
        found = self._thread.run(held_read(self._core, timeout, is_whole=is_whole))
        give_out(self._core)
        return found

    def __iter__(self) -> Iterator[R]:
        """Events and what else there is, until everything is read."""
        return self._until_completed(self.read_next_event)

    def blocks(self) -> Iterator[R]:
        """Iterate like the reader itself, but by blocks, with `read_next_block`."""
        return self._until_completed(self.read_next_block)

    def _until_completed(self, read: Callable[[], R | None]) -> Iterator[R]:
        while True:
            found = read()
            assert found is not None
            if found.is_read_completed:
                return
            yield found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(is_done=error is None)


@described(aio.EventReader)
class EventReader(_Reader[EventRead]):
    """See nadi.client.aio.EventReader."""


@described(aio.GroupValueReader)
class GroupValueReader(_Reader[ValueRead[T]], Generic[T]):
    """See nadi.client.aio.GroupValueReader."""


@described(aio.ReaderGroup)
class ReaderGroup(Face[aio.ReaderGroup]):
    """See nadi.client.aio.ReaderGroup."""

    online_readers = waits(aio.ReaderGroup.online_readers)
    stream_names = waits(aio.ReaderGroup.stream_names)
    segments_of_readers = waits(aio.ReaderGroup.segments_of_readers)
    stream_cuts = waits(aio.ReaderGroup.stream_cuts)
    checkpoints = waits(aio.ReaderGroup.checkpoints)
    unread_bytes = waits(aio.ReaderGroup.unread_bytes)
    lag = waits(aio.ReaderGroup.lag)
    notifications = each(aio.ReaderGroup.notifications)
    reader_offline = waits(aio.ReaderGroup.reader_offline)
    initiate_checkpoint = waits(aio.ReaderGroup.initiate_checkpoint)
    generate_stream_cuts = waits(aio.ReaderGroup.generate_stream_cuts)
    stream_cuts_on_condition = waits(aio.ReaderGroup.stream_cuts_on_condition)
    reset_reader_group = waits(aio.ReaderGroup.reset_reader_group)
    update_retention_stream_cut = waits(aio.ReaderGroup.update_retention_stream_cut)

    @property
    def scope(self) -> str:
        """The scope that the group is of."""
        return self._core.scope

    @property
    def name(self) -> str:
        """The group's name in its scope."""
        return self._core.name

    def _repr_html_(self) -> str:
        """For notebooks: how far it is behind now. A group is nothing else, so this asks the server."""
        from nadi.display import table

        title = f"ReaderGroup {self.scope}/{self.name}"

        async def asked() -> list[GroupLagReport]:
            async with asyncio.timeout(NOTEBOOK_ASKS_S):
                return await self._core.lag()

        try:
            return table(self._thread.run(asked()), title, "")
        except NadiError as error:
            return table([], title, f"its lag isn't known: {error}")
        except TimeoutError:
            return table([], title, f"its lag isn't known: the server didn't answer in {NOTEBOOK_ASKS_S:g} s")

    @overload
    def create_reader(self, reader_id: str, **options: Unpack[GroupReaderOptions]) -> EventReader: ...
    @overload
    def create_reader(
        self, reader_id: str, *, serializer: Serializer[T], **options: Unpack[GroupReaderOptions]
    ) -> GroupValueReader[T]: ...
    @overloaded(aio.ReaderGroup.create_reader)
    def create_reader(self, *args: Any, **options: Any) -> Any:
        """See nadi.client.aio.ReaderGroup.create_reader."""
        made = self._thread.run(self._core.create_reader(*args, **options))
        face = EventReader if isinstance(made, aio.EventReader) else GroupValueReader
        return face(self._thread, made)


@described(aio.ReaderGroupManager)
class ReaderGroupManager(Face[aio.ReaderGroupManager]):
    """See nadi.client.aio.ReaderGroupManager."""

    create_reader_group = waits(aio.ReaderGroupManager.create_reader_group)
    get_reader_group = opens(aio.ReaderGroupManager.get_reader_group, ReaderGroup)
    delete_reader_group = waits(aio.ReaderGroupManager.delete_reader_group)
    list_reader_groups = waits(aio.ReaderGroupManager.list_reader_groups)
    lag = waits(aio.ReaderGroupManager.lag)
