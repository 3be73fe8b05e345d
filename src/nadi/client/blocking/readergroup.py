"""Reader groups without await: the same names and arguments as in `group` and `reader`.

`read_next_event` takes events from the block in hand in the caller's own thread; only for the next
block, or if there is something else to tell, does it ask the client's loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, overload

from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.readergroup import group as core
from nadi.client.readergroup import manager as managers
from nadi.client.readergroup.group import Checkpoint, GroupSize
from nadi.client.readergroup.reads import Condition, EventRead
from nadi.client.readergroup.state import StreamDataRetention
from nadi.client.readergroup.values import ValueRead
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.watermarks import TimeWindow
from nadi.client.serializers.protocol import Serializer
from nadi.errors import ClosedError
from nadi.model.streamcut import StreamCut

R = TypeVar("R", bound=EventRead | ValueRead[Any])
R_co = TypeVar("R_co", bound=EventRead | ValueRead[Any], covariant=True)
T = TypeVar("T")


class _Core(Protocol[R_co]):
    """A reader of events or of values."""

    @property
    def name(self) -> str: ...
    def next_ready(self) -> R_co | None: ...
    async def read_next_event(self, timeout: float | None = None) -> R_co | None: ...
    async def read_next_block(self, timeout: float | None = None) -> R_co | None: ...
    def positions(self) -> dict[str, int]: ...
    async def current_time_window(self, stream: str) -> TimeWindow: ...
    async def close(self, *, is_done: bool = True, timeout: float = 5.0) -> None: ...


class _Reader(Generic[R]):
    def __init__(self, thread: LoopThread, reader: _Core[R]) -> None:
        self._thread, self._core = thread, reader
        self._next_ready = reader.next_ready

    @property
    def name(self) -> str:
        return self._core.name

    def read_next_event(self, timeout: float | None = None) -> R | None:
        """The next event, or what else there is to know; None if nothing came within `timeout` seconds.

        RequestTimeoutError if nothing came and the group's state could not be read either, for as long as after which
        a reader is taken for dead; ReaderOfflineError if this one was.
        """
        return self._next_ready() or self._thread.run(self._core.read_next_event(timeout))

    def read_next_block(self, timeout: float | None = None) -> R | None:
        """As `read_next_event`, with all events that were read at once as `block`."""
        return self._thread.run(self._core.read_next_block(timeout))

    def __iter__(self) -> Iterator[R]:
        """Events and what else there is, until everything is read."""
        return self._until_completed(self.read_next_event)

    def blocks(self) -> Iterator[R]:
        """As iterating over the reader, by `read_next_block`."""
        return self._until_completed(self.read_next_block)

    def _until_completed(self, read: Callable[[], R | None]) -> Iterator[R]:
        while True:
            found = read()
            assert found is not None
            if found.is_read_completed:
                return
            yield found

    def positions(self) -> dict[str, int]:
        """Up to where each segment of this reader was given out."""

        async def positions() -> dict[str, int]:
            return self._core.positions()

        return self._thread.run(positions())

    def current_time_window(self, stream: str) -> TimeWindow:
        """In which event time the group stands in a stream (`scope/stream`): this reader where it is now, the others
        where they have recorded that they are."""
        return self._thread.run(self._core.current_time_window(stream))

    def close(self, *, is_done: bool = True, timeout: float = 5.0) -> None:
        """Leave the group; `is_done`: the application has finished with all that it was given."""
        try:
            self._thread.run(self._core.close(is_done=is_done, timeout=timeout))
        except ClosedError:
            pass  # the client, closed before, has closed this

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(is_done=error is None)


Self = TypeVar("Self", bound=_Reader[Any])


class EventReader(_Reader[EventRead]):
    """See nadi.client.aio.EventReader."""


class GroupValueReader(_Reader[ValueRead[T]], Generic[T]):
    """See nadi.client.aio.GroupValueReader."""


class ReaderGroup:
    """See nadi.client.aio.ReaderGroup."""

    def __init__(self, thread: LoopThread, group: core.ReaderGroup) -> None:
        self._thread, self._core = thread, group

    @property
    def scope(self) -> str:
        return self._core.scope

    @property
    def name(self) -> str:
        return self._core.name

    @overload
    def create_reader(
        self,
        reader_id: str,
        *,
        conditions: Mapping[str, Condition] | None = ...,
        on_damage: OnDamage = ...,
        timeout: float | None = ...,
    ) -> EventReader: ...
    @overload
    def create_reader(
        self,
        reader_id: str,
        *,
        serializer: Serializer[T],
        conditions: Mapping[str, Condition] | None = ...,
        on_damage: OnDamage = ...,
        timeout: float | None = ...,
    ) -> GroupValueReader[T]: ...
    def create_reader(
        self,
        reader_id: str,
        *,
        serializer: Serializer[T] | None = None,
        conditions: Mapping[str, Condition] | None = None,
        on_damage: OnDamage = RAISE,
        timeout: float | None = None,
    ) -> EventReader | GroupValueReader[T]:
        """A reader that takes its share of the segments; AlreadyExistsError if one of that id is online."""
        if serializer is None:
            make = self._core.create_reader(reader_id, conditions=conditions, on_damage=on_damage, timeout=timeout)
            return EventReader(self._thread, self._thread.run(make))
        of_values = self._core.create_reader(
            reader_id, serializer=serializer, conditions=conditions, on_damage=on_damage, timeout=timeout
        )
        return GroupValueReader(self._thread, self._thread.run(of_values))

    def online_readers(self) -> list[str]:
        """The ids of the readers that take part now, those too that died and were not found dead yet."""
        return self._thread.run(self._core.online_readers())

    def stream_names(self) -> list[str]:
        """`scope/stream` of each."""
        return self._thread.run(self._core.stream_names())

    def segments_of_readers(self) -> dict[str, list[str]]:
        """The segments of each reader now; under "" those that nobody has."""
        return self._thread.run(self._core.segments_of_readers())

    def stream_cuts(self) -> dict[str, StreamCut]:
        """Up to where the group has recorded that it read, by stream; some seconds old."""
        return self._thread.run(self._core.stream_cuts())

    def checkpoints(self) -> list[Checkpoint]:
        """The newest complete ones, oldest first."""
        return self._thread.run(self._core.checkpoints())

    def unread_bytes(self) -> int:
        """Bytes between the recorded positions and the end cuts or the tails; event headers count."""
        return self._thread.run(self._core.unread_bytes())

    def notifications(self, *, every_s: float = 0.2) -> Iterator[GroupSize]:
        """The number of readers and segments: now, and whenever it has changed."""
        changes = self._core.notifications(every_s=every_s)

        async def following() -> GroupSize | None:
            return await anext(changes, None)

        while (size := self._thread.run(following())) is not None:
            yield size

    def reader_offline(
        self, reader_id: str, positions: Mapping[str, int] | None = None, *, timeout: float | None = None
    ) -> dict[str, StreamCut]:
        """Take a reader for dead: others go on at its last recorded positions, or at `positions`; returned."""
        return self._thread.run(self._core.reader_offline(reader_id, positions, timeout=timeout))

    def initiate_checkpoint(self, name: str, *, timeout: float = 60.0) -> Checkpoint:
        """A checkpoint that every reader passes when its application next reads; returns once all have."""
        return self._thread.run(self._core.initiate_checkpoint(name, timeout=timeout))

    def generate_stream_cuts(self, *, timeout: float = 60.0) -> dict[str, StreamCut]:
        """Where the group is now, to the event: all that readers have returned lies before these cuts."""
        return self._thread.run(self._core.generate_stream_cuts(timeout=timeout))

    def stream_cuts_on_condition(self, name: str, *, timeout: float = 60.0) -> dict[str, StreamCut]:
        """The stream cuts made where the readers' condition `name` first held; waits for that."""
        return self._thread.run(self._core.stream_cuts_on_condition(name, timeout=timeout))

    def reset_reader_group(self, to: Checkpoint | Iterable[StreamCut], *, timeout: float | None = None) -> None:
        """All readers go on from a checkpoint or from stream cuts, one for each stream of the group."""
        self._thread.run(self._core.reset_reader_group(to, timeout=timeout))

    def update_retention_stream_cut(self, cuts: Iterable[StreamCut]) -> None:
        """The group needs nothing before these cuts any more; for groups that release by hand."""
        self._thread.run(self._core.update_retention_stream_cut(cuts))


class ReaderGroupManager:
    """See nadi.client.aio.ReaderGroupManager."""

    def __init__(self, thread: LoopThread, manager: managers.ReaderGroupManager) -> None:
        self._thread, self._core = thread, manager

    def create_reader_group(
        self,
        name: str,
        streams: Iterable[str] | str,
        *,
        starts: Iterable[StreamCut] = (),
        ends: Iterable[StreamCut] = (),
        refresh_ms: int = 500,
        dead_after_ms: int = 10_000,
        checkpoint_interval_ms: int = 0,
        retention: StreamDataRetention = StreamDataRetention.NONE,
    ) -> bool:
        """A group that reads `streams` from their cuts in `starts`, or their heads; False if it existed."""
        return self._thread.run(
            self._core.create_reader_group(
                name,
                streams,
                starts=starts,
                ends=ends,
                refresh_ms=refresh_ms,
                dead_after_ms=dead_after_ms,
                checkpoint_interval_ms=checkpoint_interval_ms,
                retention=retention,
            )
        )

    def get_reader_group(self, name: str) -> ReaderGroup:
        """ReaderGroupNotFoundError if there is none."""
        return ReaderGroup(self._thread, self._thread.run(self._core.get_reader_group(name)))

    def delete_reader_group(self, name: str) -> bool:
        """False if there was none; its readers end with ReaderGroupNotFoundError."""
        return self._thread.run(self._core.delete_reader_group(name))

    def list_reader_groups(self) -> list[str]:
        """All groups of the scope, those of other clients too."""
        return self._thread.run(self._core.list_reader_groups())
