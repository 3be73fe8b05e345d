"""StreamManager: scopes and streams, and the writers and readers of them.

One StreamManager is one client: one controller connection and one set of segment store connections,
shared by all it makes, and ended with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar, overload

from nadi.client import reader as readers
from nadi.client.bookmarks import Bookmarks, NamedSlices
from nadi.client.controller import ControllerClient
from nadi.client.cuts import StreamCuts
from nadi.client.policy import RetentionPolicy, ScalingPolicy, StreamConfiguration, checked_tags
from nadi.client.reader import SliceReader
from nadi.client.readergroup.manager import ReaderGroupManager
from nadi.client.readergroup.reader import EventReader
from nadi.client.security import Credentials, security_of, split_uri
from nadi.client.segment_ranges import SegmentRange
from nadi.client.serializers import codec
from nadi.client.serializers.protocol import Serializer
from nadi.client.serializers.registry import SchemaGroup
from nadi.client.stores import Backoff, SegmentStores
from nadi.client.structures import Structures
from nadi.client.tables import Table
from nadi.client.transactions import DEFAULT_LEASE_MS, TransactionalEventWriter
from nadi.client.values import TransactionalValueWriter, ValueEvent, ValueReader, ValueWriter
from nadi.client.writer import ACK_TIMEOUT_S, EventWriter, open_writer
from nadi.errors import ClosedError, RequestTimeoutError, StreamNotFoundError, TruncatedError, UnavailableError
from nadi.model.event import EventBlock
from nadi.model.streamcut import StreamCut
from nadi.naming import check_name, segment_epoch, segment_name
from nadi.wire import commands as wire

_LEAVING_TIMEOUT_S = 2.0
T = TypeVar("T")
DEFAULT_URI = "tcp://127.0.0.1:9090"


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream now: where it begins, where it ends, whether it takes events."""

    scope: str
    stream: str
    head: StreamCut
    tail: StreamCut
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment as its store knows it; the offsets are where its data begins and ends."""

    start_offset: int
    write_offset: int
    is_sealed: bool


def controller_address(uri: str) -> str:
    """host:port of `tcp://host:port`, `tls://host:port`, `pravega://host:port` or plain `host:port`."""
    return split_uri(uri)[0]


class StreamManager(Structures):
    """A client of the controller at `controller_uri`; make it inside a running event loop.

    credentials: Basic or Bearer; None takes them from the environment, if they are there. trust_store: for
    tls:// addresses, the PEM file (or folder) of the certificates to trust; None for those of the system.
    timeout: how many seconds one request waits for the server; a call's own `timeout` is for all of its requests
    together. None is 30, and 130 for changes of streams and scopes, which may take the server long.
    """

    def __init__(
        self,
        controller_uri: str = DEFAULT_URI,
        *,
        credentials: Credentials | None = None,
        trust_store: str | os.PathLike[str] | None = None,
        validate_host_name: bool = True,
        timeout: float | None = None,
        controller: ControllerClient | None = None,
        blocking: bool = False,
    ) -> None:
        super().__init__()
        if controller is None:
            security = security_of(controller_uri, credentials, trust_store, validate_host_name)
            controller = ControllerClient(controller_address(controller_uri), security, timeout)
        self.controller = controller
        self.stores = SegmentStores(self.controller)
        self._blocking = blocking
        self._writers: list[EventWriter] = []
        self._txn_writers: list[TransactionalEventWriter] = []
        self._readers: list[SliceReader] = []
        self._group_readers: list[EventReader] = []

    async def __aenter__(self) -> StreamManager:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything that this client made; what is not stored by now fails with ClosedError."""
        for writer in self._writers:
            writer.stop(ClosedError(f"the client was closed, and with it the writer of {writer.name}"))
        await asyncio.gather(*(writer.times.leave() for writer in self._writers if writer.times is not None))
        for txn_writer in self._txn_writers:
            await txn_writer.close()
        for reader in self._readers:
            reader.close()
        await asyncio.gather(*(self._leave(reader) for reader in self._group_readers))
        await self.end_structures()
        self.stores.close()
        await self.controller.close()
        await asyncio.sleep(0)  # let what was ended run out

    async def _leave(self, reader: EventReader) -> None:
        try:
            await reader.close(is_done=False, timeout=_LEAVING_TIMEOUT_S)
        except UnavailableError:
            pass  # the other readers will take it offline

    # --- scopes -----------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> bool:
        """False if it existed."""
        check_name("scope", scope)
        return await self.controller.create_scope(scope)

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """False if there was none; NotEmptyError unless it is empty or `recursive` is given."""
        return await self.controller.delete_scope(scope, recursive=recursive)

    async def list_scopes(self) -> list[str]:
        return await self.controller.list_scopes()

    # --- streams ----------------------------------------------------------------------------

    async def create_stream(
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
        """Create a stream of `segments` segments, or one that scales by its policy; False if it existed.

        timestamp_aggregation_timeout_ms: how long watermarks wait for a writer that notes no times any more.
        """
        check_name("stream", stream)
        config = StreamConfiguration(
            scaling or ScalingPolicy.fixed(segments), retention, checked_tags(tags), timestamp_aggregation_timeout_ms
        )
        return await self.controller.create_stream(scope, stream, config)

    async def update_stream(
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
        old = await self.controller.stream_configuration(scope, stream)
        timeout_ms = timestamp_aggregation_timeout_ms
        config = StreamConfiguration(
            scaling or old.scaling,
            retention or old.retention,
            old.tags if tags is None else checked_tags(tags),
            old.timestamp_aggregation_timeout_ms if timeout_ms is None else timeout_ms,
        )
        await self.controller.update_stream(scope, stream, config)

    async def stream_configuration(self, scope: str, stream: str) -> StreamConfiguration:
        return await self.controller.stream_configuration(scope, stream)

    async def delete_stream(self, scope: str, stream: str) -> bool:
        """False if there was none; StreamNotSealedError unless it was sealed."""
        return await self.controller.delete_stream(scope, stream)

    async def seal_stream(self, scope: str, stream: str) -> None:
        """No more events can be written from now on."""
        await self.controller.seal_stream(scope, stream)

    async def truncate_stream(self, cut: StreamCut) -> None:
        """Forget what lies before the cut; InvalidStreamCutError unless it is a boundary between events."""
        with suppress(TruncatedError):  # before the head: the controller refuses that
            await self.cuts(cut.scope, cut.stream).check(cut)
        await self.controller.truncate_stream(cut)

    async def list_streams(self, scope: str, tag: str | None = None) -> list[str]:
        """Names of the scope's streams, without internal ones; only those with `tag` if given."""
        names = await self.controller.list_streams(scope, tag)
        return [name for name in names if not name.startswith("_")]

    async def stream_info(self, scope: str, stream: str) -> StreamInfo:
        """Where the stream begins and ends now, as stream cuts."""
        current, head = await asyncio.gather(
            self.controller.current_segments(scope, stream), self.controller.head(scope, stream)
        )
        segments = current or await self._last_segments(head)
        infos = await asyncio.gather(*(self.segment_info(segment_name(scope, stream, s.segment_id)) for s in segments))
        ends = {s.segment_id: info.write_offset for s, info in zip(segments, infos, strict=True)}
        return StreamInfo(scope, stream, head, StreamCut(scope, stream, ends), not current)

    async def _last_segments(self, head: StreamCut) -> list[SegmentRange]:
        """The segments that a sealed stream ended with: those of its newest segment's epoch."""
        ids = await self.controller.segments_between(head.scope, head.stream, head, None)
        if not ids:
            raise StreamNotFoundError(head.scope, head.stream)
        epoch = segment_epoch(max(ids))
        return await self.controller.epoch_segments(head.scope, head.stream, epoch)

    async def segment_info(self, segment: str) -> SegmentInfo:
        """What the store says of one segment, by its name."""
        info = await self.stores.call(segment, wire.GetStreamSegmentInfo, segment=segment)
        assert isinstance(info, wire.StreamSegmentInfo)
        return SegmentInfo(info.start_offset, info.write_offset, info.is_sealed)

    # --- segments ---------------------------------------------------------------------------

    async def current_segments(self, scope: str, stream: str) -> list[SegmentRange]:
        """The segments that take events now, by key range; none if the stream is sealed."""
        return await self.controller.current_segments(scope, stream)

    async def segments_between(
        self, scope: str, stream: str, start: StreamCut | None, end: StreamCut | None
    ) -> list[int]:
        """Ids of all segments with data between the cuts (None: head, tail), those of the cuts included."""
        for cut in (start, end):
            readers.check_cut(cut, scope, stream)
        if start is None and end is None:
            start = await self.controller.head(scope, stream)
        return await self.controller.segments_between(scope, stream, start, end)

    async def scale_stream(
        self,
        scope: str,
        stream: str,
        sealed_segments: Sequence[int],
        new_ranges: Sequence[tuple[float, float]],
        *,
        timeout: float = 120.0,
    ) -> None:
        """Replace segments by new ones with these key ranges; returns when that is done."""
        epoch = await self.controller.scale(scope, stream, sealed_segments, new_ranges)
        backoff = Backoff()
        try:
            async with asyncio.timeout(timeout):
                while not await self.controller.scale_is_done(scope, stream, epoch):
                    await backoff.pause()
        except TimeoutError:
            raise RequestTimeoutError(f"{scope}/{stream} is not scaled yet after {timeout} s") from None

    # --- writers, readers, tables -----------------------------------------------------------

    @overload
    async def create_writer(
        self,
        scope: str,
        stream: str,
        *,
        ack_timeout: float = ...,
        writer_id: str | None = ...,
        automatically_note_time: bool = ...,
    ) -> EventWriter: ...
    @overload
    async def create_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        ack_timeout: float = ...,
        writer_id: str | None = ...,
        automatically_note_time: bool = ...,
    ) -> ValueWriter[T]: ...
    async def create_writer(
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

        A serializer's schema is registered here: SchemaIncompatibleError if the stream's rule forbids it.
        writer_id: under which its times are known, for one that goes on after a restart. It is for event time only:
        an event that was not acknowledged before the restart, and is written again, may be there twice.
        automatically_note_time: note the wall clock's time every five seconds, and at the end.
        """
        encode = await self._encoder(scope, stream, serializer)
        writer = await open_writer(
            self.stores,
            scope,
            stream,
            ack_timeout_s=ack_timeout,
            blocking=self._blocking,
            writer_id=writer_id,
            automatically_note_time=automatically_note_time,
        )
        self._writers = [known for known in self._writers if not known.is_closed]
        self._writers.append(writer)
        return ValueWriter(writer, encode) if encode else writer

    @overload
    async def create_transaction_writer(
        self, scope: str, stream: str, *, writer_id: str | None = ..., lease_ms: int = ..., ack_timeout: float = ...
    ) -> TransactionalEventWriter: ...
    @overload
    async def create_transaction_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        writer_id: str | None = ...,
        lease_ms: int = ...,
        ack_timeout: float = ...,
    ) -> TransactionalValueWriter[T]: ...
    async def create_transaction_writer(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] | None = None,
        writer_id: str | None = None,
        lease_ms: int = DEFAULT_LEASE_MS,
        ack_timeout: float = ACK_TIMEOUT_S,
    ) -> TransactionalEventWriter | TransactionalValueWriter[T]:
        encode = await self._encoder(scope, stream, serializer)
        writer = TransactionalEventWriter(
            self.stores,
            scope,
            stream,
            writer_id=writer_id,
            lease_ms=lease_ms,
            ack_timeout_s=ack_timeout,
            blocking=self._blocking,
        )
        self._txn_writers = [*(known for known in self._txn_writers if not known.is_closed), writer]
        return TransactionalValueWriter(writer, encode) if encode else writer

    @overload
    async def create_reader(
        self,
        scope: str,
        stream: str,
        *,
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
    ) -> SliceReader: ...
    @overload
    async def create_reader(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
    ) -> ValueReader[T]: ...
    async def create_reader(
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
        decoder = None if serializer is None else codec.decoder(self.stores, scope, stream, serializer)
        reader = await readers.open_reader(self.stores, scope, stream, start, end, routing_keys)
        self._readers = [known for known in self._readers if not known.is_closed]
        self._readers.append(reader)
        return reader if decoder is None else ValueReader(reader, decoder)

    @overload
    def read_events(
        self,
        scope: str,
        stream: str,
        *,
        start: StreamCut | None = ...,
        end: StreamCut | None = ...,
        routing_keys: Sequence[str] | None = ...,
    ) -> AsyncIterator[readers.Event]: ...
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
    ) -> AsyncIterator[ValueEvent[T]]: ...
    def read_events(
        self,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T] | None = None,
        start: StreamCut | None = None,
        end: StreamCut | None = None,
        routing_keys: Sequence[str] | None = None,
    ) -> AsyncIterator[readers.Event] | AsyncIterator[ValueEvent[T]]:
        """The events one by one; use `create_reader` for blocks and for the position."""
        if serializer is None:
            return self._read_events(scope, stream, start, end, routing_keys)
        return self._read_values(scope, stream, start, end, routing_keys, serializer)

    async def read_batches(
        self,
        scope: str,
        stream: str,
        *,
        start: StreamCut | None = None,
        end: StreamCut | None = None,
        routing_keys: Sequence[str] | None = None,
    ) -> AsyncIterator[list[bytes]]:
        """The events as lists, one for each block read: several times as fast as one by one."""
        reader = await self.create_reader(scope, stream, start=start, end=end, routing_keys=routing_keys)
        try:
            async for _, block in reader:
                yield block.events()
        finally:
            reader.close()

    async def _read_events(
        self,
        scope: str,
        stream: str,
        start: StreamCut | None,
        end: StreamCut | None,
        routing_keys: Sequence[str] | None,
    ) -> AsyncIterator[readers.Event]:
        reader = await self.create_reader(scope, stream, start=start, end=end, routing_keys=routing_keys)
        try:
            async for segment_id, block in reader:
                for event in readers.events_of(segment_id, block):
                    yield event
        finally:
            reader.close()

    async def _read_values(
        self,
        scope: str,
        stream: str,
        start: StreamCut | None,
        end: StreamCut | None,
        routing_keys: Sequence[str] | None,
        serializer: Serializer[T],
    ) -> AsyncIterator[ValueEvent[T]]:
        reader = await self.create_reader(
            scope, stream, serializer=serializer, start=start, end=end, routing_keys=routing_keys
        )
        try:
            async for events in reader:
                for event in events:
                    yield event
        finally:
            reader.close()

    def read_segment_range(self, segment: str, start: int, end: int) -> AsyncIterator[EventBlock]:
        """The events of one segment between two event boundaries, in blocks."""
        return readers.read_segment_range(self.stores, segment, start, end)

    # --- cuts, bookmarks, slices --------------------------------------------------------------

    def cuts(self, scope: str, stream: str) -> StreamCuts:
        """The stream's cuts: make, check, compare and measure them."""
        return StreamCuts(self, scope, stream)

    def bookmarks(self, scope: str) -> Bookmarks:
        """The scope's bookmarks."""
        return Bookmarks(self, scope)

    def slices(self, scope: str) -> NamedSlices:
        """The scope's named slices."""
        return NamedSlices(self, scope)

    async def open_slice(self, scope: str, name: str, *, routing_keys: Sequence[str] | None = None) -> SliceReader:
        """A reader of the slice of that name; SliceNotFoundError if there is none."""
        found = await self.slices(scope).get(name)
        return await self.create_reader(
            scope, found.stream, start=found.start, end=found.end, routing_keys=routing_keys
        )

    # --- reader groups ------------------------------------------------------------------------

    def reader_group_manager(self, scope: str) -> ReaderGroupManager:
        """To make and find the reader groups of a scope."""
        return ReaderGroupManager(self, scope)

    def adopt(self, reader: EventReader) -> None:
        """A reader of a group: it leaves the group, and what it was given last is not done, when this client ends."""
        self._group_readers = [known for known in self._group_readers if not known.is_closed]
        self._group_readers.append(reader)

    def table(self, scope: str, name: str) -> Table:
        """A key-value table of the scope; create it with its `create`."""
        return Table(self.stores, scope, name)

    async def _encoder(self, scope: str, stream: str, serializer: Serializer[T] | None) -> Callable[[T], bytes] | None:
        return None if serializer is None else await codec.encoder(self.stores, scope, stream, serializer)

    def schemas(self, scope: str, stream: str) -> SchemaGroup:
        """The schemas of a stream's serializers, and the rule for new ones."""
        return SchemaGroup(self.stores, scope, stream)
