"""What a StreamManager does with scopes and streams as a whole: make, change, look at, scale and end them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from nadi.client.control.arguments import checked
from nadi.client.control.controller import ControllerClient
from nadi.client.control.patience import Backoff, TimeLimit
from nadi.client.control.policy import RetentionPolicy, ScalingPolicy, StreamConfiguration, checked_tags
from nadi.client.reading.reader import check_cut
from nadi.client.segments.info import SegmentInfo, StreamInfo, segment_info, stream_info
from nadi.client.segments.stores import SegmentStores
from nadi.errors import ProtocolError
from nadi.model.scrub import ScrubReport
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import SCRUB_SEGMENT, check_name
from nadi.wire import commands as wire


@checked()
class Administration:
    """The part of StreamManager that does so."""

    controller: ControllerClient
    stores: SegmentStores

    # --- the store --------------------------------------------------------------------------

    async def scrub(self, *, start: bool = False) -> ScrubReport:
        """How far the server is with reading everything that it keeps, and what the last pass found.

        start: begin a pass now, unless one that was asked for is under way. PermissionDeniedError unless the caller
        may create scopes.
        """
        reply = await self.stores.call(SCRUB_SEGMENT, wire.Scrub, segment=SCRUB_SEGMENT, start=start)
        if not isinstance(reply, wire.ScrubReported):
            raise ProtocolError(f"Scrub was answered with {type(reply).__name__}")
        return msgspec.json.decode(reply.report, type=ScrubReport)

    # --- scopes -----------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> bool:
        """False if it existed."""
        check_name("scope", scope)
        return await self.controller.create_scope(scope)

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """False if there was none; NotEmptyError unless it is empty or `recursive` is given."""
        return await self.controller.delete_scope(scope, recursive=recursive)

    async def list_scopes(self) -> list[str]:
        """The names of all scopes."""
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
        """Its scaling, retention and tags; StreamNotFoundError if there is no such stream."""
        return await self.controller.stream_configuration(scope, stream)

    async def delete_stream(self, scope: str, stream: str) -> bool:
        """False if there was none; StreamNotSealedError unless it was sealed."""
        return await self.controller.delete_stream(scope, stream)

    async def seal_stream(self, scope: str, stream: str) -> None:
        """No more events can be written from now on."""
        await self.controller.seal_stream(scope, stream)

    async def list_streams(self, scope: str, tag: str | None = None) -> list[str]:
        """Names of the scope's streams, without internal ones; only those with `tag` if given."""
        names = await self.controller.list_streams(scope, tag)
        return [name for name in names if not name.startswith("_")]

    async def stream_info(self, scope: str, stream: str) -> StreamInfo:
        """Where the stream begins and ends now, as stream cuts."""
        return await stream_info(self.stores, scope, stream)

    async def segment_info(self, segment: str) -> SegmentInfo:
        """What the store says of one segment, by its name."""
        return await segment_info(self.stores, segment)

    # --- segments ---------------------------------------------------------------------------

    async def current_segments(self, scope: str, stream: str) -> list[SegmentRange]:
        """The segments that take events now, by key range; none if the stream is sealed."""
        return await self.controller.current_segments(scope, stream)

    async def segments_between(
        self, scope: str, stream: str, start: StreamCut | None, end: StreamCut | None
    ) -> list[int]:
        """Ids of all segments with data between the cuts (None: head, tail), those of the cuts included."""
        for cut in (start, end):
            check_cut(cut, scope, stream)
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
        async with TimeLimit(timeout, lambda: f"{scope}/{stream} is not scaled yet after {timeout} s"):
            while not await self.controller.scale_is_done(scope, stream, epoch):
                await backoff.pause()
