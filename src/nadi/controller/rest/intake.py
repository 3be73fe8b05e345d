"""Data that comes over REST, for an `Intake`; the controller never looks at it.

Bodies may be as large as the largest event, so one of any size worth mentioning waits for a place before it is read:
what has none stays in the peer's network.
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
from nadi.access.fair_shares import Places
from nadi.controller.state.metadata import StreamName
from nadi.errors import InvalidArgumentError
from nadi.runtime import REAL

LOGS_PATH = "/v1/logs"
_PATHS = re.compile(r"/v1/scopes/[^/?]+/streams/[^/?]+/events|/v1/logs")


@dataclass(frozen=True, slots=True)
class Sent:
    """A request with data. media: its content type, lower-case and without parameters; authorization: the header."""

    media: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    authorization: str | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """Records of a request that are not stored, though others are. problem: that of the first."""

    records: int
    problem: str


class Intake(Protocol):
    """What takes data, and returns once it is stored."""

    async def events(self, stream: StreamName, sent: Sent) -> int:
        """How many these were."""

    async def logs(self, stream: StreamName, sent: Sent) -> Rejected | None:
        """OpenTelemetry's, of a collector or an application; those that were rejected."""


def takes_data(path: str) -> bool:
    """Whether a path is for data.

    >>> takes_data("/v1/scopes/home/streams/meters/events"), takes_data("/v1/scopes/home/streams/meters")
    (True, False)
    """
    return _PATHS.fullmatch(path) is not None


@asynccontextmanager
async def taken(request: Request, places: Places, *, grows: bool = False) -> AsyncIterator[Sent]:
    """The whole request, which has its place until it is worked on: before it is read if it is large, and after that if
    it is little but becomes large, for it is packed, or `grows` as it is understood. InvalidArgumentError, or
    HTTPException, where its body isn't what may come."""
    headers = request.headers
    length = None if "transfer-encoding" in headers else headers.get("content-length")
    coding = headers.get("content-encoding", "identity").strip().lower()
    is_little = length is not None and int(length) <= limits.INGEST_LITTLE_BYTES
    place = places.of(request.client.host if request.client is not None else "", limit_s=limits.INGEST_PLACE_S)
    async with AsyncExitStack() as held:
        if not is_little:
            await held.enter_async_context(place)
        data = await whole_body(request, limits.INGEST_BODY_MAX_BYTES)
        if is_little and (coding != "identity" or grows):
            await held.enter_async_context(place)
        body = bytes(data) if coding == "identity" else await REAL.in_thread(_unpacked, data, coding)
        yield Sent(media_type(request), headers, _query(request), body, headers.get("authorization"))


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _query(request: Request) -> dict[str, str]:
    """The parameters; InvalidArgumentError for one that comes twice, or that isn't UTF-8."""
    try:
        found = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgumentError("a parameter is not UTF-8: encode each byte of UTF-8 as %E2, say") from None
    query = dict(found)
    if len(query) < len(found):
        raise InvalidArgumentError("a parameter is there twice: give it once")
    return query


async def whole_body(request: Request, most_bytes: int = limits.REST_BODY_MAX_BYTES) -> bytearray:
    """Of any request. What comes of it has more time for the rest; what stands still has its place for a short while
    alone. HTTPException: it is too large. InvalidArgumentError: it doesn't come."""
    data, start_s, allowed_s = bytearray(), asyncio.get_running_loop().time(), limits.REST_BODY_TIMEOUT_S
    too_large = HTTPException(413, f"the body has more than {most_bytes:,} bytes", {"Connection": "close"})
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
            f"only {len(data):,} bytes of the body came within {allowed_s:.0f} s: send less at a time"
        ) from error
    except ClientDisconnect as error:
        raise InvalidArgumentError("the client left before its body was here") from error
    return data


def _unpacked(body: bytearray, coding: str) -> bytes:
    if coding not in ("gzip", "x-gzip"):
        raise HTTPException(415, f"a body may be packed by gzip, not by {coding[:40]}")
    if not body:
        raise InvalidArgumentError("the body is not whole gzip: it is empty")
    try:
        data = gzip.GzipFile(fileobj=io.BytesIO(body)).read(limits.INGEST_BODY_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidArgumentError(f"the body is not whole gzip: {error}") from error
    if len(data) > limits.INGEST_BODY_MAX_BYTES:
        raise HTTPException(413, f"the body has more than {limits.INGEST_BODY_MAX_BYTES:,} bytes once it is unpacked")
    return data
