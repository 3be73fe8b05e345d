"""An HTTP service as a handler: it gets the events as CloudEvents over persistent connections.

2xx: done; CloudEvents in the response are outputs. 429 and 503: busy, so the request is repeated without limit, after
`Retry-After` if given. 408, 425, other 5xx, no response: the event may be retried. All other statuses are final: the
service rejects the event.

An event's `id` is its position in the stream, the same each time that it is sent, so that a receiver can detect
duplicates; `source` is the stream, `partitionkey` the routing key, or the segment if the key is unknown: events of one
partition key are sent in order. `subject` is the routing key.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.functions.handlers.address import TargetAddress
from nadi.functions.handlers.event import Failure, FunctionError, HandlerEvent, Outcome, Output
from nadi.limits import (
    FUNCTION_ERROR_CHARS,
    FUNCTION_REPLY_BYTES,
    FUNCTION_SLICE_BYTES,
    FUNCTION_SLICE_S,
    MAX_EVENT_BYTES,
)
from nadi.model.cloud_events import (
    BATCH,
    PREFIX,
    STRUCTURED,
    Fields,
    check,
    data_of,
    header_text,
    is_json_type,
    key_from,
)
from nadi.model.json_events import NotJsonError, checked, elements_of, fields_of

try:
    import httpx
    from cloudevents.core.bindings.http import to_binary_event, to_structured_event
    from cloudevents.core.formats.json import JSONFormat
    from cloudevents.core.v1.event import CloudEvent
except ImportError as error:
    raise FunctionError(
        f"a target needs packages that are not installed ({error}): pip install 'nadi[functions]'"
    ) from error

_AGAIN = {408, 425}  # request timeout, too early
_BUSY = {429, 503}
_EVENT = "the event"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    headers: Mapping[str, str]
    body: bytes


class BadReplyError(Exception):
    """A response declares CloudEvents, but they can't be read."""


def cloud_event(event: HandlerEvent, event_type: str, content_type: str, now: datetime) -> CloudEvent:
    """Return an event as a CloudEvent; now: when it was read, its `time`."""
    attributes: dict[str, Any] = {
        "id": event.id,
        "source": f"/nadi/{event.stream}",
        "type": event_type,
        "time": now,
        "datacontenttype": content_type,
        "partitionkey": event.routing_key or event.segment,  # must not be empty
    }
    if event.routing_key:
        attributes["subject"] = event.routing_key
    return CloudEvent(attributes, event.data)


def binary(event: CloudEvent) -> HttpRequest:
    """Return a request with attributes as headers and the event's bytes as body."""
    message = to_binary_event(event)
    return HttpRequest(message.headers, message.body)


def structured(event: CloudEvent) -> HttpRequest:
    message = to_structured_event(CloudEvent(event.get_attributes()))
    return HttpRequest(message.headers, _document(event))


def batched(events: Sequence[CloudEvent]) -> HttpRequest:
    return HttpRequest({"content-type": BATCH}, b"[" + b",".join(map(_document, events)) + b"]")


def _document(event: CloudEvent) -> bytes:
    """Return the event as JSON; its data, if JSON, is embedded byte by byte instead of as base64."""
    data = event.get_data()
    says_json = is_json_type(str(event.get_attributes()["datacontenttype"]))
    if not says_json or not isinstance(data, bytes) or not _is_json(data):
        return JSONFormat().write(event)
    return JSONFormat().write(CloudEvent(event.get_attributes())).removesuffix(b"}") + b', "data": ' + data + b"}"


def _is_json(data: bytes) -> bool:
    """Return whether the data is valid JSON that can be embedded in other JSON.

    >>> _is_json(b'{"wh": 1.50}'), _is_json(b"NaN"), _is_json(b"[" * 100_000)
    (True, False, False)
    """
    try:
        return checked(data) == data
    except NotJsonError:
        return False


def outputs_of_reply(headers: Mapping[str, str], body: bytes) -> list[Output]:
    """Return the events of a response, with their partition keys or subjects as routing keys; none if it doesn't have
    CloudEvents. Each is the data, the same bytes in every form. headers: decoded as Latin-1, HTTP's charset.

    >>> outputs_of_reply({"ce-id": "1", "ce-source": "/", "ce-type": "t", "ce-specversion": "1.0"}, b"12")
    [(None, b'12')]
    >>> outputs_of_reply({"content-type": "text/plain"}, b"OK")
    []
    """
    names = {name.lower(): value for name, value in headers.items()}
    content_type = names.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if content_type == BATCH:
            return [_of_document(bytes(document)) for document in elements_of(body)]
        if content_type == STRUCTURED:
            return [_of_document(body)]
        if PREFIX + "specversion" in names:
            attributes = {
                name.removeprefix(PREFIX): msgspec.Raw(msgspec.json.encode(header_text(name, value)))
                for name, value in names.items()
                if name.startswith(PREFIX)
            }
            return [_output(attributes, body)]
    except InvalidArgumentError as error:
        raise BadReplyError(str(error)) from None
    return []


def _of_document(document: bytes) -> Output:
    fields = fields_of(document)
    return _output(fields, data_of(fields, _EVENT))


def _output(event: Fields, data: bytes) -> Output:
    check(event, _EVENT)
    if len(data) > MAX_EVENT_BYTES:
        raise EventTooLargeError(len(data), MAX_EVENT_BYTES)
    key = key_from(event, "partitionkey", _EVENT)
    return key_from(event, "subject", _EVENT) if key is None else key, data


class HttpTarget:
    """A `Handler` that posts to a service. wants_outputs: whether CloudEvents in responses are read."""

    def __init__(self, target: TargetAddress, timeout_s: float, *, wants_outputs: bool) -> None:
        self._target, self._timeout_s, self._wants_outputs = target, timeout_s, wants_outputs
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        verify: ssl.SSLContext | bool = True
        if self._target.trust_store is not None:
            try:
                verify = ssl.create_default_context(cafile=self._target.trust_store)
            except (OSError, ssl.SSLError) as error:
                raise FunctionError(f"can't read the trust store {self._target.trust_store}: {error}") from error
        try:
            httpx.URL(self._target.url)
        except httpx.InvalidURL as error:
            raise FunctionError(f"invalid target URL {self._target.url}: {error}") from None
        headers = {"Accept-Encoding": "identity", **self._target.headers}
        self._client = httpx.AsyncClient(verify=verify, headers=headers, timeout=None)

    async def call(self, events: Sequence[HandlerEvent], attempt: int) -> Outcome:
        now = datetime.now(UTC)
        cloud_events = [cloud_event(event, self._target.event_type, self._target.content_type, now) for event in events]
        if self._target.mode == "batched":
            outputs, failure = await self._post(batched(cloud_events))
            if failure is not None:
                return Outcome(done=0, failure=failure, together=len(events))
            return Outcome(done=len(events), outputs=outputs)
        shape = binary if self._target.mode == "binary" else structured
        all_outputs: list[Output] = []
        size_bytes = 0
        ends_at = time.monotonic() + FUNCTION_SLICE_S
        for index, event in enumerate(cloud_events):
            outputs, failure = await self._post(shape(event))
            if failure is not None:
                return Outcome(done=index, outputs=all_outputs, failure=failure)
            key = events[index].routing_key
            all_outputs += [(key if own_key is None else own_key, data) for own_key, data in outputs]
            size_bytes += sum(len(data) for _, data in outputs)
            if time.monotonic() >= ends_at or size_bytes >= FUNCTION_SLICE_BYTES:
                return Outcome(done=index + 1, outputs=all_outputs)
        return Outcome(done=len(events), outputs=all_outputs)

    async def _post(self, request: HttpRequest) -> tuple[list[Output], Failure | None]:
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
                        return [], _failed(
                            "refused", "AnswerTooLarge", f"the response has over {FUNCTION_REPLY_BYTES:,} bytes"
                        )
        except TimeoutError:
            return [], _failed("timed out", "Timeout", f"no response within {self._timeout_s:g} s")
        except httpx.HTTPError as error:
            return [], _failed("unavailable", type(error).__name__, str(error) or "the service did not respond")
        failure = failure_of_status(reply.status_code, reply.headers, bytes(body[:FUNCTION_ERROR_CHARS]))
        if failure is not None or not self._wants_outputs:
            return [], failure
        if (coding := reply.headers.get("content-encoding", "identity").lower()) != "identity":
            # httpx silently drops all but the first gzip member
            return [], _failed(
                "refused",
                "AnswerCompressed",
                f"the response is compressed with {coding}, despite Accept-Encoding: identity",
            )
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers.raw}
            return outputs_of_reply(headers, bytes(body)), None
        except BadReplyError as error:
            return [], _failed("refused", "BadReply", f"can't read the CloudEvents of the response: {error}")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def failure_of_status(status: int, headers: Mapping[str, str], body: bytes) -> Failure | None:
    """Return the failure that a response means; None for success.

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
        message = "redirects are not followed: use the address it leads to"
    return Failure(
        kind="unavailable" if status in _BUSY else "refused",
        error=f"HTTP {status}",
        message=message[:FUNCTION_ERROR_CHARS],
        is_final=status < 500 and status not in _AGAIN and status not in _BUSY,
        is_busy=status in _BUSY,
        retry_after_s=retry_after_s,
    )


def seconds_of(retry_after: str, now: float) -> float | None:
    """Return the wait that `Retry-After` asks for, in seconds or until a date; None if it is invalid.

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
