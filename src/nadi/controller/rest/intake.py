"""Reception of data over REST, for an `Intake`; the controller is not involved.

Bodies may be as large as the largest event, so a large one waits for a place before it is read; until then it stays in
the network.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from nadi import limits
from nadi.access.fair_shares import FairQueue
from nadi.controller.state.metadata import StreamName
from nadi.errors import InvalidArgumentError
from nadi.runtime import REAL

LOGS_PATH = "/v1/logs"
_PATHS = re.compile(r"/v1/scopes/[^/?]+/streams/[^/?]+/events|/v1/logs")


@dataclass(frozen=True, slots=True)
class DataRequest:
    """A received data request. media: lower-case content type without parameters; authorization: the header."""

    media: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    authorization: str | None


@dataclass(frozen=True, slots=True)
class RejectedRecords:
    """Records of a request that were not stored, although others were. problem: why the first was rejected."""

    records: int
    problem: str


class Intake(Protocol):
    """A sink for data, which returns once the data is stored."""

    async def events(self, stream: StreamName, sent: DataRequest) -> int:
        """Store the events and return their number."""

    async def logs(self, stream: StreamName, sent: DataRequest) -> RejectedRecords | None:
        """Store OpenTelemetry log records; return those that were rejected."""


def takes_data(path: str) -> bool:
    """Return whether a path takes data.

    >>> takes_data("/v1/scopes/home/streams/meters/events"), takes_data("/v1/scopes/home/streams/meters")
    (True, False)
    """
    return _PATHS.fullmatch(path) is not None


@asynccontextmanager
async def received(request: Request, places: FairQueue, *, grows: bool = False) -> AsyncIterator[DataRequest]:
    """Receive a request and keep its place until it is processed. A large request takes the place before it is read; a
    small one afterwards, if it is compressed or `grows` when decoded. Raises InvalidArgumentError or HTTPException if
    the body is unacceptable."""
    headers = request.headers
    length = None if "transfer-encoding" in headers else headers.get("content-length")
    coding = headers.get("content-encoding", "identity").strip().lower()
    is_little = length is not None and int(length) <= limits.INGEST_LITTLE_BYTES
    place = places.of(request.client.host if request.client is not None else "", limit_s=limits.INGEST_SLOT_TIMEOUT_S)
    async with AsyncExitStack() as stack:
        if not is_little:
            await stack.enter_async_context(place)
        data = await whole_body(request, limits.INGEST_BODY_MAX_BYTES)
        if is_little and (coding != "identity" or grows):
            await stack.enter_async_context(place)
        body = bytes(data) if coding == "identity" else await REAL.in_thread(_unpacked, data, coding)
        yield DataRequest(media_type(request), headers, _query(request), body, headers.get("authorization"))


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _query(request: Request) -> dict[str, str]:
    """Return the parameters; InvalidArgumentError if one is repeated or isn't UTF-8."""
    try:
        pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgumentError("a parameter is not UTF-8: percent-encode its UTF-8 bytes, such as %E2") from None
    query = dict(pairs)
    if len(query) < len(pairs):
        raise InvalidArgumentError("a parameter is repeated: give each one once")
    return query


async def whole_body(request: Request, most_bytes: int = limits.REST_BODY_MAX_BYTES) -> bytearray:
    """Read the body of any request. Each byte received extends the time limit, so only a stalled body times out.
    HTTPException if it is too large, InvalidArgumentError if it is incomplete."""
    data, start_s, allowed_s = bytearray(), asyncio.get_running_loop().time(), limits.REST_BODY_TIMEOUT_S
    too_large = HTTPException(413, f"the body exceeds {most_bytes:,} bytes: send less", {"Connection": "close"})
    if int(request.headers.get("content-length", 0)) > most_bytes:
        raise too_large
    try:
        async with asyncio.timeout(allowed_s) as limit:
            async for chunk in request.stream():
                data += chunk
                if len(data) > most_bytes:
                    raise too_large
                allowed_s = limits.REST_BODY_TIMEOUT_S + len(data) / limits.FRAME_LEAST_BYTES_S
                limit.reschedule(start_s + allowed_s)
    except TimeoutError as error:
        raise InvalidArgumentError(
            f"only {len(data):,} bytes of the body arrived within {allowed_s:.0f} s: send smaller requests"
        ) from error
    except ClientDisconnect as error:
        raise InvalidArgumentError("the client disconnected before the body was complete") from error
    return data


def _unpacked(body: bytearray, coding: str) -> bytes:
    if coding not in ("gzip", "x-gzip"):
        raise HTTPException(415, f"the content coding {coding[:40]} is not supported: use gzip")
    if not body:
        raise InvalidArgumentError("the gzip body is incomplete: it is empty")
    try:
        data = gzip.GzipFile(fileobj=io.BytesIO(body)).read(limits.INGEST_BODY_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidArgumentError(f"the gzip body is incomplete or damaged: {error}") from error
    if len(data) > limits.INGEST_BODY_MAX_BYTES:
        raise HTTPException(413, f"the decompressed body exceeds {limits.INGEST_BODY_MAX_BYTES:,} bytes: send less")
    return data
