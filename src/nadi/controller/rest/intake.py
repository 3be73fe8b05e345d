"""Data that comes over REST: its paths, how much of it is taken at a time, and what is to be done with it.

Requests for management are small and held until they are answered. These may be as large as the largest event, so a
body of any size worth mentioning waits for a place before it is read: what has none stays in the peer's network.
Whatever is done with events is done by an `Intake`, which the server is given; the controller never looks at them.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from nadi.access.shares import Places
from nadi.controller.state.metadata import StreamName
from nadi.errors import InvalidArgumentError
from nadi.limits import (
    FRAME_LEAST_BYTES_S,
    INGEST_BODY_MAX_BYTES,
    INGEST_LITTLE_BYTES,
    INGEST_PLACE_S,
    REST_BODY_TIMEOUT_S,
)

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


class Intake(Protocol):
    """What takes data. Each returns how many events were written once all are stored."""

    async def events(self, stream: StreamName, sent: Sent) -> int: ...

    async def logs(self, stream: StreamName, sent: Sent) -> int:
        """OpenTelemetry's, of a collector or an application."""


def takes_data(path: str) -> bool:
    """Whether a path is for data.

    >>> takes_data("/v1/scopes/home/streams/meters/events"), takes_data("/v1/scopes/home/streams/meters")
    (True, False)
    """
    return _PATHS.fullmatch(path) is not None


@asynccontextmanager
async def taken(request: Request, places: Places) -> AsyncIterator[Sent]:
    """The whole request, which has its place until it is worked on. InvalidArgumentError, or HTTPException, where its
    body isn't what may come."""
    told = request.headers.get("content-length")
    address = request.client.host if request.client is not None else ""
    async with AsyncExitStack() as held:
        if told is None or int(told) > INGEST_LITTLE_BYTES:
            try:
                async with asyncio.timeout(INGEST_PLACE_S):
                    await held.enter_async_context(places.of(address))
            except TimeoutError:
                raise HTTPException(
                    503, "as much data as may be is on its way: send this again soon", {"Retry-After": "1"}
                ) from None
        body = _unpacked(await _body(request), request.headers.get("content-encoding", "identity").strip().lower())
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        query = dict(request.query_params)
        yield Sent(media, request.headers, query, body, request.headers.get("authorization"))


async def _body(request: Request) -> bytearray:
    data, timeout_s = bytearray(), REST_BODY_TIMEOUT_S + INGEST_BODY_MAX_BYTES / FRAME_LEAST_BYTES_S
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                data += chunk
    except TimeoutError as error:
        raise InvalidArgumentError(f"the body did not come within {timeout_s:.0f} s") from error
    except ClientDisconnect as error:
        raise InvalidArgumentError("the client left before its body was here") from error
    return data


def _unpacked(body: bytearray, coding: str) -> bytes:
    if coding == "identity":
        return bytes(body)
    if coding not in ("gzip", "x-gzip"):
        raise HTTPException(415, f"a body may be packed by gzip, not by {coding[:40]}")
    parser = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        data = parser.decompress(bytes(body), INGEST_BODY_MAX_BYTES + 1)
    except zlib.error as error:
        raise InvalidArgumentError(f"the body is not gzip: {error}") from error
    if len(data) > INGEST_BODY_MAX_BYTES:
        raise HTTPException(413, f"the body has more than {INGEST_BODY_MAX_BYTES:,} bytes once it is unpacked")
    if not parser.eof or parser.unused_data:
        raise InvalidArgumentError("the body is not one whole gzip")
    return data
