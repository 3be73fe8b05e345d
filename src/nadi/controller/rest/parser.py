"""h11's parser with limits: how much it is given at a time, and how large a head and a body may be.

h11 works through everything it is given, one event for each chunk of a body, and a head's lines all at once. So it
gets bytes in portions of few bytes and few lines, however they were sent; each portion is little work.
"""

from __future__ import annotations

import h11

from nadi.controller.rest.intake import takes_data
from nadi.limits import (
    INGEST_BODY_MAX_BYTES,
    INGEST_FRAMING_PART,
    REST_BODY_FRAMING_MAX_BYTES,
    REST_BODY_MAX_BYTES,
    REST_HEAD_MAX_BYTES,
    REST_HEAD_MAX_LINES,
    REST_PORTION_BYTES,
    REST_PORTION_LINES,
)

Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


def cut_portion(received: bytearray) -> bytes:
    """Take off its front what the parser may have next: so many bytes, or so many lines if these are fewer.

    >>> received = bytearray(b"a\\n" * 100)
    >>> cut_portion(received).count(b"\\n"), len(received)
    (64, 72)
    """
    end = 0
    for _ in range(REST_PORTION_LINES):
        end = received.find(b"\n", end, REST_PORTION_BYTES) + 1
        if not end:
            end = REST_PORTION_BYTES
            break
    portion = bytes(memoryview(received)[:end])
    del received[:end]
    return portion


class Parser(h11.Connection):
    """Of one connection. `refusal` is the status and text to answer with, once `next_event` has raised."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, REST_HEAD_MAX_BYTES)
        self.refusal = (400, "this is not HTTP")
        self._came_bytes = 0  # of a request after its head, with the framing of its chunks
        self._payload_bytes = 0
        self.head_bytes = 0  # parsed, of the latest request
        self.has_data = False  # whether its body is data, which is taken as it comes
        self._body_max_bytes = REST_BODY_MAX_BYTES

    @property
    def request_bytes(self) -> int:
        """Parsed bytes of the latest request: its head and body, without framing."""
        return self.head_bytes + self._payload_bytes

    @property
    def unparsed_bytes(self) -> int:
        """Bytes received but in no event yet."""
        return len(self.trailing_data[0])

    @property
    def takes_more(self) -> bool:
        """Whether it can use bytes now: it can't between a request's last byte and the end of the answer."""
        return self.their_state in (h11.IDLE, h11.SEND_BODY)

    def receive_data(self, data: bytes) -> None:
        self._came_bytes += len(data)
        super().receive_data(data)

    def next_event(self) -> Event:
        """h11's; RemoteProtocolError also for what is too large."""
        event = super().next_event()
        if event is h11.NEED_DATA:
            self._check_incomplete()
        elif isinstance(event, h11.Request):
            self._came_bytes, self._payload_bytes = self.unparsed_bytes, 0
            self.head_bytes = len(event.target) + sum(len(name) + len(value) for name, value in event.headers)
            self.has_data = takes_data(event.target.partition(b"?")[0].decode("latin-1"))
            self._body_max_bytes = INGEST_BODY_MAX_BYTES if self.has_data else REST_BODY_MAX_BYTES
            told = next((value for name, value in event.headers if name == b"content-length"), b"0")
            if int(told) > self._body_max_bytes:
                self._refuse_body()
        elif isinstance(event, h11.Data):
            self._payload_bytes += len(event.data)
            if self._payload_bytes > self._body_max_bytes:
                self._refuse_body()
        return event

    def _check_incomplete(self) -> None:
        if self.trailing_data[0].count(b"\n") > REST_HEAD_MAX_LINES:
            self._refuse(431, f"a head has at most {REST_HEAD_MAX_LINES} lines")
        allowed = REST_BODY_FRAMING_MAX_BYTES + (self._payload_bytes // INGEST_FRAMING_PART if self.has_data else 0)
        if self.their_state is h11.SEND_BODY and self._came_bytes - self._payload_bytes > allowed:
            self._refuse(413, "the body's chunks are too small: send it in larger ones, or with a Content-Length")

    def _refuse_body(self) -> None:
        self._refuse(413, f"the body has more than {self._body_max_bytes:,} bytes")

    def _refuse(self, status: int, message: str) -> None:
        self.refusal = status, message
        raise h11.RemoteProtocolError(message, error_status_hint=status)
