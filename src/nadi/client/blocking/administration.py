"""The blocking face of `administration`: what a StreamManager does with scopes and streams as a whole."""

from __future__ import annotations

from nadi.client import aio
from nadi.client.blocking.face import Face, waits


class Administration(Face[aio.StreamManager]):
    """The part of the blocking StreamManager that does so."""

    scrub = waits(aio.StreamManager.scrub)
    create_scope = waits(aio.StreamManager.create_scope)
    delete_scope = waits(aio.StreamManager.delete_scope)
    list_scopes = waits(aio.StreamManager.list_scopes)
    create_stream = waits(aio.StreamManager.create_stream)
    update_stream = waits(aio.StreamManager.update_stream)
    stream_configuration = waits(aio.StreamManager.stream_configuration)
    delete_stream = waits(aio.StreamManager.delete_stream)
    seal_stream = waits(aio.StreamManager.seal_stream)
    truncate_stream = waits(aio.StreamManager.truncate_stream)
    list_streams = waits(aio.StreamManager.list_streams)
    stream_info = waits(aio.StreamManager.stream_info)
    kept = waits(aio.StreamManager.kept)
    segment_info = waits(aio.StreamManager.segment_info)
    current_segments = waits(aio.StreamManager.current_segments)
    segment_history = waits(aio.StreamManager.segment_history)
    segment_loads = waits(aio.StreamManager.segment_loads)
    scaling_log = waits(aio.StreamManager.scaling_log)
    reader_lags = waits(aio.StreamManager.reader_lags)
    segments_between = waits(aio.StreamManager.segments_between)
    scale_stream = waits(aio.StreamManager.scale_stream)
