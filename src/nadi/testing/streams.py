"""Helpers to fill and read streams; all events are stored, or read, when a call returns."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

from nadi.client import StreamManager
from nadi.client.serializers import Bytes, Serializer
from nadi.errors import RequestTimeoutError
from nadi.model.streamcut import StreamCut

T = TypeVar("T")
Keys = str | Sequence[str | None] | None


@overload
def fill_stream(
    manager: StreamManager,
    scope: str,
    stream: str,
    events: Iterable[bytes],
    routing_keys: Keys = ...,
    *,
    segments: int = ...,
) -> StreamCut: ...
@overload
def fill_stream(
    manager: StreamManager,
    scope: str,
    stream: str,
    events: Iterable[T],
    routing_keys: Keys = ...,
    *,
    segments: int = ...,
    serializer: Serializer[T],
) -> StreamCut: ...
def fill_stream(
    manager: StreamManager,
    scope: str,
    stream: str,
    events: Iterable[Any],
    routing_keys: Keys = None,
    *,
    segments: int = 1,
    serializer: Serializer[Any] | None = None,
) -> StreamCut:
    """Write events to the stream, creating it with `segments` segments if necessary; return the cut after them."""
    manager.create_stream(scope, stream, segments)
    with manager.create_writer(scope, stream, serializer=serializer or Bytes()) as writer:
        writer.write_batch(events, routing_keys)
    return manager.stream_info(scope, stream).tail


@overload
def read_stream(
    manager: StreamManager, scope: str, stream: str, *, start: StreamCut | None = ..., end: StreamCut | None = ...
) -> list[bytes]: ...
@overload
def read_stream(
    manager: StreamManager,
    scope: str,
    stream: str,
    *,
    serializer: Serializer[T],
    start: StreamCut | None = ...,
    end: StreamCut | None = ...,
) -> list[T]: ...
def read_stream(
    manager: StreamManager,
    scope: str,
    stream: str,
    *,
    serializer: Serializer[Any] | None = None,
    start: StreamCut | None = None,
    end: StreamCut | None = None,
) -> list[Any]:
    """Return all events currently in the stream (or up to `end`), in order for each routing key."""
    end = end or manager.stream_info(scope, stream).tail
    events = manager.read_events(scope, stream, serializer=serializer or Bytes(), start=start, end=end)
    return [event.value for event in events]


@overload
def await_events(
    manager: StreamManager, scope: str, stream: str, count: int, *, timeout: float = ..., start: StreamCut | None = ...
) -> list[bytes]: ...
@overload
def await_events(
    manager: StreamManager,
    scope: str,
    stream: str,
    count: int,
    *,
    serializer: Serializer[T],
    timeout: float = ...,
    start: StreamCut | None = ...,
) -> list[T]: ...
def await_events(
    manager: StreamManager,
    scope: str,
    stream: str,
    count: int,
    *,
    serializer: Serializer[Any] | None = None,
    timeout: float = 30.0,
    start: StreamCut | None = None,
) -> list[Any]:
    """Wait for the first `count` events from `start` (or the head), and return them.

    RequestTimeoutError if fewer arrive within `timeout` seconds, or before the end of a sealed stream.
    """
    deadline = time.monotonic() + timeout
    received: list[Any] = []
    with manager.create_reader(scope, stream, serializer=serializer or Bytes(), start=start) as reader:
        while len(received) < count:
            try:
                events = reader.next_events(max(deadline - time.monotonic(), 0.001))
            except RequestTimeoutError:
                events = None
            if events is None:
                raise RequestTimeoutError(
                    f"{len(received)} of {count} events arrived in {scope}/{stream} before its end or {timeout} s"
                )
            received += [event.value for event in events]
    return received[:count]
