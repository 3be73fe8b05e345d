"""Answers: JSON bodies, long lists that go out page by page, and what each error becomes.

Expected errors keep their message, which says what to do; anything else is logged and answered with a
500 that reveals no internals.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from nadi import errors
from nadi.controller.rest.bodies import Error
from nadi.limits import REST_MESSAGE_MAX_CHARS

log = logging.getLogger(__name__)

T = TypeVar("T")

JSON = "application/json"
encode = msgspec.json.Encoder().encode

# A sealed stream can't be updated: Pravega's interface has no word for that but 500.
_CODES: list[tuple[type[errors.NadiError], int]] = [
    (errors.NotAuthenticatedError, 401),
    (errors.PermissionDeniedError, 403),
    (errors.NotFoundError, 404),
    (errors.InvalidArgumentError, 400),
    (errors.NotEmptyError, 412),
    (errors.StreamNotSealedError, 412),
    (errors.StreamSealedError, 500),
    (errors.ConflictError, 409),
    (errors.UnavailableError, 503),
]
_HEADERS = {401: {"WWW-Authenticate": 'Basic realm="nadi"'}, 503: {"Retry-After": "1"}}


def reply(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type=JSON)


def no_content() -> Response:
    return Response(status_code=204)


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    if len(message) > REST_MESSAGE_MAX_CHARS:
        message = f"{message[:REST_MESSAGE_MAX_CHARS]}... ({len(message):,} characters)"
    return Response(encode(Error(message)), status, headers=headers, media_type=JSON)


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "there is nothing at this path", 405: "this path doesn't take that verb"}
    message = words.get(error.status_code, error.detail)
    if error.status_code in words:
        message += ": see /v1/openapi.json for what there is"
    return refusal(error.status_code, message, dict(error.headers or {}))


def failure(request: Request, error: Exception) -> Response:
    """The answer to an error that came out of a handler."""
    for kind, status in _CODES:
        if isinstance(error, kind):
            return refusal(status, str(error), _HEADERS.get(status))
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return refusal(500, "the server failed to handle this request: see its log")


async def stream_list(
    name: str,
    fetch: Callable[[str], Awaitable[tuple[Sequence[T], str]]],
    shown: Callable[[Sequence[T]], Sequence[Any]],
    place: Callable[[], AbstractAsyncContextManager[None]],
) -> StreamingResponse:
    """An object whose field `name` lists what is `shown` of each page; `fetch` gives the page after a token, and the
    next token; an empty page is the end."""

    async def pages() -> AsyncIterator[Sequence[Any]]:
        found, token = await fetch("")
        while found:
            yield shown(found)
            found, token = await fetch(token)

    return await stream_array(pages(), place, f'{{"{name}":['.encode(), b"]}")


async def stream_array(
    pages: AsyncIterator[Sequence[Any]],
    place: Callable[[], AbstractAsyncContextManager[None]],
    before: bytes = b"[",
    after: bytes = b"]",
) -> StreamingResponse:
    """A JSON array whose items come page by page, so memory holds one page however long it is.

    Each page waits for a `place` in which it is fetched and encoded. The first is fetched before anything is sent, so
    an error at the start gets its own status.
    """

    async def following() -> bytes | None:
        async with place():
            page = await anext(pages, None)
            return None if page is None else bytes(memoryview(encode(page))[1:-1])

    first = await following()

    async def body() -> AsyncIterator[bytes]:
        separator = before
        items = first
        while items is not None:
            if items:
                yield separator + items
                separator = b","
            items = await following()
        yield (before if separator is before else b"") + after

    return StreamingResponse(body(), media_type=JSON)
