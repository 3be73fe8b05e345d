"""An HTTP service as a handler: it gets the events as CloudEvents, over connections that stay open.

2xx: done, and CloudEvents in the answer are outputs. 429 and 503: it is busy, so the same is sent again, after
`Retry-After` if it says so, as often as it takes. 408, 425, other 5xx, no answer: the event may be sent again. Anything
else is final: it does not want this event.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime

from nadi.functions.stopped import FunctionError

try:
    import httpx

    from nadi.functions.handlers import cloud_events
except ImportError as error:
    raise FunctionError(
        f"a target needs packages that are not installed ({error}): pip install 'nadi[functions]'"
    ) from error

from nadi.functions.handlers.address import Target
from nadi.functions.handlers.cloud_events import BadReplyError, Request, outputs_of_reply
from nadi.functions.handlers.event import Event
from nadi.functions.handlers.outcome import Failure, Outcome, Output
from nadi.limits import FUNCTION_ERROR_CHARS, FUNCTION_REPLY_BYTES, FUNCTION_SLICE_BYTES, FUNCTION_SLICE_S

_AGAIN = {408, 425}  # the request came too late, or too early
_BUSY = {429, 503}


class HttpTarget:
    """A `Handler`. wants_outputs: whether CloudEvents in answers are looked at."""

    def __init__(self, target: Target, timeout_s: float, *, wants_outputs: bool) -> None:
        self._target, self._timeout_s, self._wants_outputs = target, timeout_s, wants_outputs
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        verify: ssl.SSLContext | bool = True
        if self._target.trust_store is not None:
            try:
                verify = ssl.create_default_context(cafile=self._target.trust_store)
            except (OSError, ssl.SSLError) as error:
                raise FunctionError(f"the trust store {self._target.trust_store} can't be used: {error}") from error
        try:
            httpx.URL(self._target.url)
        except httpx.InvalidURL as error:
            raise FunctionError(f"the target {self._target.url} is no address: {error}") from None
        headers = {"Accept-Encoding": "identity", **self._target.headers}
        self._client = httpx.AsyncClient(verify=verify, headers=headers, timeout=None)

    async def call(self, events: Sequence[Event], attempt: int) -> Outcome:
        now = cloud_events.now()
        made = [
            cloud_events.cloud_event(event, self._target.event_type, self._target.content_type, now) for event in events
        ]
        if self._target.mode == "batched":
            outputs, failure = await self._post(cloud_events.batched(made))
            if failure is not None:
                return Outcome(done=0, failure=failure, together=len(events))
            return Outcome(done=len(events), outputs=outputs)
        shape = cloud_events.binary if self._target.mode == "binary" else cloud_events.structured
        all_outputs: list[Output] = []
        size_bytes = 0
        ends_at = time.monotonic() + FUNCTION_SLICE_S
        for index, event in enumerate(made):
            outputs, failure = await self._post(shape(event))
            if failure is not None:
                return Outcome(done=index, outputs=all_outputs, failure=failure)
            key = events[index].routing_key
            all_outputs += [(key if given is None else given, data) for given, data in outputs]
            size_bytes += sum(len(data) for _, data in outputs)
            if time.monotonic() >= ends_at or size_bytes >= FUNCTION_SLICE_BYTES:
                return Outcome(done=index + 1, outputs=all_outputs)
        return Outcome(done=len(events), outputs=all_outputs)

    async def _post(self, request: Request) -> tuple[list[Output], Failure | None]:
        assert self._client is not None
        body = bytearray()
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream(
                    "POST", self._target.url, content=request.body, headers=dict(request.headers)
                ) as reply,
            ):
                async for piece in reply.aiter_bytes():
                    body += piece
                    if len(body) > FUNCTION_REPLY_BYTES:
                        return [], _failed("refused", "AnswerTooLarge", f"over {FUNCTION_REPLY_BYTES:,} bytes")
        except TimeoutError:
            return [], _failed("timed out", "Timeout", f"no answer in {self._timeout_s:g} s")
        except httpx.HTTPError as error:
            return [], _failed("unavailable", type(error).__name__, str(error) or "the service did not answer")
        failure = failure_of_status(reply.status_code, reply.headers, bytes(body[:FUNCTION_ERROR_CHARS]))
        if failure is not None or not self._wants_outputs:
            return [], failure
        if (coding := reply.headers.get("content-encoding", "identity").lower()) != "identity":
            # httpx leaves out all members of gzip but the first, and says nothing
            return [], _failed("refused", "AnswerCompressed", f"by {coding}, though it was asked for as it is")
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers.raw}
            return outputs_of_reply(headers, bytes(body)), None
        except BadReplyError as error:
            return [], _failed("refused", "BadReply", f"its answer has CloudEvents that can't be read: {error}")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def failure_of_status(status: int, headers: Mapping[str, str], body: bytes) -> Failure | None:
    """What an answer means; None for one that says it is done.

    >>> failure_of_status(204, {}, b"")
    >>> failure_of_status(503, {"Retry-After": "7"}, b"").retry_after_s
    7.0
    >>> failure_of_status(422, {}, b"no meter").is_final
    True
    """
    if 200 <= status < 300:
        return None
    retry_after_s = None
    for name, value in headers.items():
        if name.lower() == "retry-after":
            retry_after_s = seconds_of(value, time.time())
    message = body.decode(errors="replace").strip() or "no explanation"
    if 300 <= status < 400:
        message = "redirects are not followed: give the address where it leads to"
    return Failure(
        kind="unavailable" if status in _BUSY else "refused",
        error=f"HTTP {status}",
        message=message[:FUNCTION_ERROR_CHARS],
        is_final=status < 500 and status not in _AGAIN and status not in _BUSY,
        is_busy=status in _BUSY,
        retry_after_s=retry_after_s,
    )


def seconds_of(retry_after: str, now: float) -> float | None:
    """How long `Retry-After` asks to wait, in seconds or until a date; None if it says neither.

    >>> seconds_of("120", 0.0), seconds_of("Thu, 01 Jan 1970 00:01:00 GMT", 50.0), seconds_of("soon", 0.0)
    (120.0, 10.0, None)
    """
    text = retry_after.strip()
    try:
        return float(text) if text.isdecimal() else max(parsedate_to_datetime(text).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return None


def _failed(kind: str, error: str, message: str) -> Failure:
    return Failure(kind=kind, error=error, message=message)
