"""The blocking face of `administration`: what a StreamManager does with scopes and streams as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nadi.client import aio
from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.control.policy import RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.segments.info import SegmentInfo, StreamInfo
from nadi.model.scrub import ScrubReport
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut


class Administration:
    """The part of the blocking StreamManager that does so."""

    _thread: LoopThread
    _core: aio.StreamManager

    def scrub(self, *, start: bool = False) -> ScrubReport:
        """How far the server is with reading everything that it keeps; `start`: let it begin now."""
        return self._thread.run(self._core.scrub(start=start))

    def create_scope(self, scope: str) -> bool:
        """False if it existed."""
        return self._thread.run(self._core.create_scope(scope))

    def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """False if there was none."""
        return self._thread.run(self._core.delete_scope(scope, recursive=recursive))

    def list_scopes(self) -> list[str]:
        """The names of all scopes."""
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
        """Its scaling, retention and tags; StreamNotFoundError if there is no such stream."""
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
        """Names of the scope's streams, without internal ones; only those with `tag` if given."""
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
