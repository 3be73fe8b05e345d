"""Converts events for a browser: text if valid UTF-8, otherwise Base64; pictures are recognized by their first
bytes."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from msgspec import UNSET

from nadi.limits import (
    PAGE_BATCH_BYTES,
    PAGE_BATCH_EVENTS,
    PAGE_BATCH_LEAST_S,
    PAGE_BATCH_S,
    PAGE_PICTURE_BYTES,
    PAGE_TEXT_BYTES,
)
from nadi.web.bodies import EventBody

_PICTURES = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF8", "image/gif"),
)


def media_of(data: bytes) -> str:
    """Return the media type of a picture; "" for other data.

    >>> media_of(b"\\xff\\xd8\\xff\\xe0"), media_of(b"{}")
    ('image/jpeg', '')
    """
    for start, media in _PICTURES:
        if data.startswith(start):
            return media
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def seen(data: bytes, segment: int, offset: int, time_ms: int, due_ms: int | None = None) -> EventBody:
    """Convert an event, truncating data too large for a browser."""
    due = UNSET if due_ms in (None, time_ms) else due_ms
    media = media_of(data[:16])
    most = PAGE_PICTURE_BYTES if media else PAGE_TEXT_BYTES
    size = len(data) if len(data) > most else UNSET
    if media and size is UNSET:
        return EventBody(segment, offset, time_ms, base64=base64.b64encode(data).decode(), media=media, due=due)
    shown = data[: PAGE_TEXT_BYTES if size is not UNSET else most]
    text = _text(shown, is_cut=size is not UNSET)
    if text is not None:
        return EventBody(segment, offset, time_ms, text=text, sizeBytes=size, due=due)
    return EventBody(segment, offset, time_ms, base64=base64.b64encode(shown).decode(), sizeBytes=size, due=due)


def size_of(event: EventBody) -> int:
    return len(event.text or "") + len(event.base64 or "")


def pause_s(events: Sequence[EventBody]) -> float:
    """Return how long to wait after this batch: the duration of a video frame for a picture, and longer for many events
    so that the browser isn't overloaded.

    >>> pause_s([]), pause_s([EventBody(0, 0, 0)] * 200)
    (0.015, 0.04)
    """
    share = max(len(events) / PAGE_BATCH_EVENTS, sum(map(size_of, events)) / PAGE_BATCH_BYTES)
    return max(PAGE_BATCH_LEAST_S, PAGE_BATCH_S * min(share, 1.0))


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """Decode text, dropping a truncated last character; None if it isn't UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.start > len(data) - 4 and error.start > 0:
            return data[: error.start].decode()
        return None
