"""The blocking face: the classes of `nadi.client.aio` with the same names and arguments, without await.

Each method hands its coroutine to the client's loop thread and waits. What a manager makes has its faces in
modules of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar, overload

from nadi.client import aio
from nadi.client.blocking_cuts import Bookmarks, NamedSlices, StreamCuts
from nadi.client.blocking_openers import Structures
from nadi.client.blocking_readers import SliceReader, Table
from nadi.client.blocking_values import Schemas, TransactionalValueWriter, ValueReader, ValueWriter
from nadi.client.blocking_writers import EventWriter, TransactionalEventWriter
from nadi.client.loop_thread import LoopThread
from nadi.client.policy import RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.reader import Event, events_of
from nadi.client.readergroup.blocking import ReaderGroupManager
from nadi.client.security import Credentials
from nadi.client.segment_ranges import SegmentRange
from nadi.client.serializers.protocol import Serializer
from nadi.client.streams import DEFAULT_URI, SegmentInfo, StreamInfo
from nadi.client.transactions import DEFAULT_LEASE_MS
from nadi.client.values import ValueEvent
from nadi.client.writer import ACK_TIMEOUT_S
from nadi.model.event import EventBlock
from nadi.model.streamcut import StreamCut

T = TypeVar("T")


class StreamManager(Structures):
    """See nadi.client.aio.StreamManager; its thread ends with `close`, or with the process."""

    def __init__(
        self,
        controller_uri: str = DEFAULT_URI,
        *,
        credentials: Credentials | None = None,
        trust_store: str | os.PathLike[str] | None = None,
        validate_host_name: bool = True,
        timeout: float | None = None,
    ) -> None:
        self._thread = LoopThread(f"nadi client of {controller_uri}")

        async def make() -> aio.StreamManager:
            return aio.StreamManager(
                controller_uri,
                credentials=credentials,
                trust_store=trust_store,
                validate_host_name=validate_host_name,
                timeout=timeout,
                blocking=True,
            )

        try:
            self._core = self._thread.run(make())
        except BaseException:
            self._thread.close(_nothing())
            raise

    def close(self) -> None:
        """End everything that this client made; every wait ends with ClosedError."""
        self._thread.close(self._core.close())

    def __enter__(self) -> StreamManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- scopes and streams -----------------------------------------------------------------

    def create_scope(self, scope: str) -> bool:
        """False if it existed."""
        return self._thread.run(self._core.create_scope(scope))

    def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """False if there was none."""
        return self._thread.run(self._core.delete_scope(scope, recursive=recursive))

    def list_scopes(self) -> list[str]:
        return self._thread.run(self._core.list_scopes())

    def create_stream(
        self,
        scope: str,
        stream: str,
        segments: int = 1,
        *,
        scaling: ScalingPolicy | None = None,
        retention: RetentionPolicy | None = None,
        tags: Iterable[str] = (),
        timestamp_aggregation_timeout_ms: int = 0,
    ) -> bool:
        """Create a stream of `segments` segments, or one that scales by its policy; False if it existed."""
        return self._thread.run(
            self._core.create_stream(
                scope,
                stream,
                segments,
                scaling=scaling,
                retention=retention,
                tags=tags,
                timestamp_aggregation_timeout_ms=timestamp_aggregation_timeout_ms,
            )
        )

    def update_stream(
        self,
        scope: str,
        stream: str,
        *,
        scaling: ScalingPolicy | None = None,
        retention: RetentionPolicy | None = None,
        tags: Iterable[str] | None = None,
        timestamp_aggregation_timeout_ms: int | None = None,
    ) -> None:
        """Change what is given and keep the rest."""
        self._thread.run(
            self._core.update_stream(
                scope,
                stream,
                scaling=scaling,
                retention=retention,
                tags=tags,
                timestamp_aggregation_timeout_ms=timestamp_aggregation_timeout_ms,
            )
        )

    def stream_configuration(self, scope: str, stream: str) -> StreamConfiguration:
        return self._thread.run(self._core.stream_configuration(scope, stream))

    def delete_stream(self, scope: str, stream: str) -> bool:
        """False if there was none; StreamNotSealedError unless it was sealed."""
        return self._thread.run(self._core.delete_stream(scope, stream))

    def seal_stream(self, scope: str, stream: str) -> None:
        """No more events can be written from now on."""
        self._thread.run(self._core.seal_stream(scope, stream))

    def truncate_stream(self, cut: StreamCut) -> None:
        """Forget what lies before the cut; InvalidStreamCutError unless it is a boundary between events."""
        self._thread.run(self._core.truncate_stream(cut))

    def list_streams(self, scope: str, tag: str | None = None) -> list[str]:
        return self._thread.run(self._core.list_streams(scope, tag))

    def stream_info(self, scope: str, stream: str) -> StreamInfo:
        """Where the stream begins and ends now, as stream cuts."""
        return self._thread.run(self._core.stream_info(scope, stream))

    def segment_info(self, segment: str) -> SegmentInfo:
        """What the store says of one segment, by its name."""
        return self._thread.run(self._core.segment_info(segment))

    def current_segments(self, scope: str, stream: str) -> list[SegmentRange]:
        """The segments that take events now, by key range; none if the stream is sealed."""
        return self._thread.run(self._core.current_segments(scope, stream))

    def segments_between(self, scope: str, stream: str, start: StreamCut | None, end: StreamCut | None) -> list[int]:
        """Ids of all segments with data between the cuts (None: head, tail)."""
        return self._thread.run(self._core.segments_between(scope, stream, start, end))

    def scale_stream(
        self,
        scope: str,
        stream: str,
        sealed_segments: Sequence[int],
        new_ranges: Sequence[tuple[float, float]],
        *,
        timeout: float = 120.0,
    ) -> None:
        """Replace segments by new ones with these key ranges; returns when that is done."""
        self._thread.run(self._core.scale_stream(scope, stream, sealed_segments, new_ranges, timeout=timeout))

    # --- writers, readers, tables -----------------------------------------------------------

    @overload
    def create_writer(
        self,
        scope: str,
        stream: str,
        *,
        ack_timeout: float = ...,
        writer_id: str | None = ...,
        automatically_note_time: bool = ...,
    ) -> EventWriter: ...
    @overload
    def create_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        ack_timeout: float = ...,
        writer_id: str | None = ...,
        automatically_note_time: bool = ...,
    ) -> ValueWriter[T]: ...
    def create_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] | None = None,
        ack_timeout: float = ACK_TIMEOUT_S,
        writer_id: str | None = None,
        automatically_note_time: bool = False,
    ) -> EventWriter | ValueWriter[T]:
        """A writer of events, or of the serializer's values; what is not stored within `ack_timeout` seconds fails.

        writer_id: under which its times are known, for one that goes on after a restart. It is for event time only:
        an event that was not acknowledged before the restart, and is written again, may be there twice.
        automatically_note_time: note the wall clock's time every five seconds, and at the end.
        """
        core, thread = self._core, self._thread
        if serializer is None:
            return EventWriter(
                thread,
                thread.run(
                    core.create_writer(
                        scope,
                        stream,
                        ack_timeout=ack_timeout,
                        writer_id=writer_id,
                        automatically_note_time=automatically_note_time,
                    )
                ),
            )
        made = core.create_writer(
            scope,
            stream,
            serializer=serializer,
            ack_timeout=ack_timeout,
            writer_id=writer_id,
            automatically_note_time=automatically_note_time,
        )
        return ValueWriter(thread, thread.run(made))

    @overload
    def create_transaction_writer(
        self, scope: str, stream: str, *, writer_id: str | None = ..., lease_ms: int = ..., ack_timeout: float = ...
    ) -> TransactionalEventWriter: ...
    @overload
    def create_transaction_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        writer_id: str | None = ...,
        lease_ms: int = ...,
        ack_timeout: float = ...,
    ) -> TransactionalValueWriter[T]: ...
    def create_transaction_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] | None = None,
        writer_id: str | None = None,
        lease_ms: int = DEFAULT_LEASE_MS,
        ack_timeout: float = ACK_TIMEOUT_S,
    ) -> TransactionalEventWriter | TransactionalValueWriter[T]:
        create = self._core.create_transaction_writer
        if serializer is not None:
            made = create(
                scope, stream, serializer=serializer, writer_id=writer_id, lease_ms=lease_ms, ack_timeout=ack_timeout
            )
            return TransactionalValueWriter(self._thread, self._thread.run(made))
        core = self._thread.run(create(scope, stream, writer_id=writer_id, lease_ms=lease_ms, ack_timeout=ack_timeout))
        return TransactionalEventWriter(self._thread, core)

    @overload
    def create_reader(
        self,
        scope: str,
        stream: str,
        *,
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
    ) -> SliceReader: ...
    @overload
    def create_reader(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
    ) -> ValueReader[T]: ...
    def create_reader(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] | None = None,
        start: StreamCut | None = None,
        end: StreamCut | None = None,
        routing_keys: Sequence[str] | None = None,
    ) -> SliceReader | ValueReader[T]:
        """Blocks of events, or lists of values, from `start` (or the head) to `end` (or on, as they arrive).

        routing_keys: read only the segments that can hold these keys; they hold other keys too.
        """
        if serializer is not None:
            made = self._core.create_reader(
                scope, stream, serializer=serializer, start=start, end=end, routing_keys=routing_keys
            )
            return ValueReader(self._thread, self._thread.run(made))
        core = self._thread.run(
            self._core.create_reader(scope, stream, start=start, end=end, routing_keys=routing_keys)
        )
        return SliceReader(self._thread, core)

    @overload
    def read_events(
        self,
        scope: str,
        stream: str,
        *,
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
    ) -> Iterator[Event]: ...
    @overload
    def read_events(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
    ) -> Iterator[ValueEvent[T]]: ...
    def read_events(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] | None = None,
        start: StreamCut | None = None,
        end: StreamCut | None = None,
        routing_keys: Sequence[str] | None = None,
    ) -> Iterator[Event] | Iterator[ValueEvent[T]]:
        """The events one by one, for ever unless `end` is given or the stream is sealed."""
        if serializer is None:
            return self._read_events(scope, stream, start, end, routing_keys)
        return self._read_values(scope, stream, start, end, routing_keys, serializer)

    def read_batches(
        self,
        scope: str,
        stream: str,
        *,
        start: StreamCut | None = None,
        end: StreamCut | None = None,
        routing_keys: Sequence[str] | None = None,
    ) -> Iterator[list[bytes]]:
        """The events as lists, one for each block read: several times as fast as one by one."""
        with self.create_reader(scope, stream, start=start, end=end, routing_keys=routing_keys) as reader:
            for _, block in reader:
                yield block.events()

    def _read_events(
        self,
        scope: str,
        stream: str,
        start: StreamCut | None,
        end: StreamCut | None,
        routing_keys: Sequence[str] | None,
    ) -> Iterator[Event]:
        with self.create_reader(scope, stream, start=start, end=end, routing_keys=routing_keys) as reader:
            for segment_id, block in reader:
                yield from events_of(segment_id, block)

    def _read_values(
        self,
        scope: str,
        stream: str,
        start: StreamCut | None,
        end: StreamCut | None,
        routing_keys: Sequence[str] | None,
        serializer: Serializer[T],
    ) -> Iterator[ValueEvent[T]]:
        with self.create_reader(
            scope, stream, serializer=serializer, start=start, end=end, routing_keys=routing_keys
        ) as reader:
            for events in reader:
                yield from events

    def read_segment_range(self, segment: str, start: int, end: int) -> Iterator[EventBlock]:
        """The events of one segment between two event boundaries, in blocks."""
        blocks = self._core.read_segment_range(segment, start, end)

        async def following() -> EventBlock | None:
            return await anext(blocks, None)

        while (block := self._thread.run(following())) is not None:
            yield block

    # --- cuts, bookmarks, slices --------------------------------------------------------------

    def cuts(self, scope: str, stream: str) -> StreamCuts:
        """The stream's cuts: make, check, compare and measure them."""
        return StreamCuts(self._thread, self._core.cuts(scope, stream))

    def bookmarks(self, scope: str) -> Bookmarks:
        """The scope's bookmarks."""
        return Bookmarks(self._thread, self._core.bookmarks(scope))

    def slices(self, scope: str) -> NamedSlices:
        """The scope's named slices."""
        return NamedSlices(self._thread, self._core.slices(scope))

    def open_slice(self, scope: str, name: str, *, routing_keys: Sequence[str] | None = None) -> SliceReader:
        """A reader of the slice of that name; SliceNotFoundError if there is none."""
        return SliceReader(
            self._thread, self._thread.run(self._core.open_slice(scope, name, routing_keys=routing_keys))
        )

    # --- reader groups ------------------------------------------------------------------------

    def reader_group_manager(self, scope: str) -> ReaderGroupManager:
        """To make and find the reader groups of a scope."""
        return ReaderGroupManager(self._thread, self._core.reader_group_manager(scope))

    def table(self, scope: str, name: str) -> Table:
        """A key-value table of the scope; create it with its `create`."""
        return Table(self._thread, self._core.table(scope, name))

    def schemas(self, scope: str, stream: str) -> Schemas:
        """The schemas of a stream's serializers, and the rule for new ones."""
        return Schemas(self._thread, self._core.schemas(scope, stream))


async def _nothing() -> None:
    pass
