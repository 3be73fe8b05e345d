"""REST endpoints: their description, access checks, handlers, and responses: JSON, paged lists, and error statuses.

Access is checked before the handler runs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from nadi import errors, limits
from nadi.access.authentication import Gate
from nadi.access.budget import Budget
from nadi.access.fair_shares import FairQueue, LoopTurns
from nadi.access.names import Act, Need, need
from nadi.access.permissions import CLUSTER, Caller, Permission, Permissions, reader_group_resource, scope_resource
from nadi.controller.controller import Controller
from nadi.controller.metrics import OwnMetrics
from nadi.controller.rest.bodies import Error
from nadi.controller.rest.intake import Intake, media_type, whole_body
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.limits import REST_MESSAGE_MAX_CHARS
from nadi.observe.health import Component

log = logging.getLogger(__name__)

T = TypeVar("T")

JSON = "application/json"
_JSON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_TYPE = re.compile(rf"(?<=[`|\s])(?:{'|'.join(_JSON_TYPES)})(?=[`|\s])")
encode = msgspec.json.Encoder().encode

# A sealed stream can't be updated; Pravega's interface offers only 500 for that.
_CODES: list[tuple[type[errors.NadiError], int]] = [
    (errors.NotAuthenticatedError, 401),
    (errors.PermissionDeniedError, 403),
    (errors.QuotaExceededError, 403),
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


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    if len(message) > REST_MESSAGE_MAX_CHARS:
        message = f"{message[:REST_MESSAGE_MAX_CHARS]}... ({len(message):,} characters)"
    return Response(encode(Error(message)), status, headers=headers, media_type=JSON)


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    allowed = ", ".join(sorted({*headers.get("Allow", "").split(", ")} - {"HEAD"}))
    words = {404: "this path does not exist", 405: f"this path does not support {request.method}, only {allowed}"}
    message = words.get(error.status_code, error.detail)
    if error.status_code in words:
        message += ": see /v1/openapi.json for the available endpoints"
    return refusal(error.status_code, message, headers)


def failure(request: Request, error: Exception) -> Response:
    for kind, status in _CODES:
        if isinstance(error, kind):
            return refusal(status, str(error), _HEADERS.get(status))
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return refusal(500, "the server failed to handle this request: see its log")


Place = Callable[[], AbstractAsyncContextManager[None]]
Fetch = Callable[[str], Awaitable[tuple[Sequence[T], str]]]


async def stream_list(
    name: str, fetch: Fetch[T], shown: Callable[[Sequence[T]], Sequence[Any]], place: Place
) -> StreamingResponse:
    """Stream an object whose field `name` lists `shown` of each page. fetch: returns the page after a token, and the
    next token; an empty page is the end."""

    async def pages() -> AsyncIterator[Sequence[Any]]:
        page, token = await fetch("")
        while page:
            yield shown(page)
            page, token = await fetch(token)

    return await stream_array(pages(), place, f'{{"{name}":['.encode(), b"]}")


async def stream_array(
    pages: AsyncIterator[Sequence[Any]], place: Place, before: bytes = b"[", after: bytes = b"]"
) -> StreamingResponse:
    """Stream a JSON array page by page, so that memory use is limited to a page. Each page is fetched and encoded
    within a `place`. The first is fetched before the response starts, so an early error gets its own status."""

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


ANYONE = Caller("everybody", Permissions.parse("*,READ_UPDATE"))
BROWSER_HEADERS = (b"origin", b"sec-fetch-site")


@dataclass(frozen=True, slots=True)
class Site:
    """Endpoints and pages served in addition to the controller's own."""

    endpoints: tuple[RestEndpoint, ...] = ()
    pages: tuple[Route, ...] = ()


@dataclass(slots=True)
class Api:
    """State shared by all handlers. Without a `gate` everyone may do everything. controller: None until the server has
    recovered, and while another server of the cluster has the active one; then `stands_by` is set. cluster: the
    operator's view of the server; None outside a cluster. migration: of this server's data; None in a cluster.
    intake: None until the server accepts data."""

    health: Callable[[], Component]
    gate: Gate | None = None
    controller: Controller | None = None
    stands_by: bool = False
    cluster: Any = None
    migration: Any = None
    own_metrics: OwnMetrics | None = None
    intake: Intake | None = None
    site: Site = field(default_factory=Site)
    data_places: FairQueue = field(default_factory=lambda: FairQueue(limits.INGEST_LARGE_AT_ONCE))
    budget: Budget = field(default_factory=Budget)
    pages: FairQueue = field(default_factory=lambda: FairQueue(limits.REST_PAGES_AT_ONCE))
    turns: LoopTurns = field(default_factory=lambda: LoopTurns(limits.REST_STEPS_A_TURN))


@dataclass(frozen=True, slots=True)
class RestCall:
    """A request with its decoded body and its authenticated caller."""

    request: Request
    api: Api
    body: Any = None
    caller: Caller = ANYONE

    @property
    def controller(self) -> Controller:
        if self.api.controller is None:
            raise UnavailableError("the server is still recovering: try again, or watch /v1/health")
        return self.api.controller

    @asynccontextmanager
    async def page(self) -> AsyncIterator[None]:
        """Enter around each page of a long list: few are built at once, each in a turn shared with all requests."""
        address = self.request.client.host if self.request.client is not None else ""
        async with self.api.pages.of(address):
            await self.api.turns.wait_for_turn(address)
            yield

    def shows(self, resource: str) -> bool:
        return self.caller.may(resource, Permission.READ)

    def part(self, name: str) -> str:
        return str(self.request.path_params[name])

    @property
    def scope(self) -> str:
        return self.part("scopeName")

    @property
    def stream(self) -> StreamName:
        return StreamName(self.scope, self.part("streamName"))

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name)

    @property
    def group(self) -> GroupName:
        return GroupName(self.scope, self.part("readerGroupName"))


PAGE_FILES = "/page"  # the web page's files
DATA = "/v1/data"  # served through the client library by any server, active controller or not
SCOPE = "/v1/scopes/{scopeName}"
STREAM = SCOPE + "/streams/{streamName}"

Handler = Callable[[RestCall], Awaitable[Any]]  # returns a response, a value to encode as JSON, or None
NeedOf = Callable[[RestCall], Need]  # returns the access that a request requires


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter; `schema` describes its values."""

    name: str
    description: str
    schema: Mapping[str, Any]
    required: bool = False


@dataclass(frozen=True, slots=True)
class RestEndpoint:
    """An endpoint. body, gives: types of the JSON request and response. needs: the access checked before the handler
    runs. codes: further status codes and their conditions. media: response types, chosen by the request's preference.
    takes: content types of a body that the handler reads itself. action: in the audit stream; "" for requests that
    change nothing."""

    verb: str
    path: str
    summary: str
    handler: Handler
    needs: NeedOf
    gives: Any = None
    status: int = 200
    body: Any = None
    codes: Mapping[int, str] | None = None
    query: tuple[Parameter, ...] = ()
    media: tuple[str, ...] = (JSON,)
    takes: tuple[str, ...] = ()
    action: str = ""


def on_cluster(permission: Permission) -> NeedOf:
    return lambda call: Need(CLUSTER, permission)


def on_scope(permission: Permission) -> NeedOf:
    return lambda call: Need(scope_resource(call.scope), permission)


def on_stream(act: Act) -> NeedOf:
    return lambda call: need(*call.stream, act)


def on_reader_group(permission: Permission) -> NeedOf:
    return lambda call: Need(reader_group_resource(*call.group), permission)


def endpoint(verb: str, path: str, needs: NeedOf, gives: Any = None, **more: Any) -> Callable[[Handler], RestEndpoint]:
    """Make a handler an endpoint with its docstring as the summary; the arguments are RestEndpoint's."""
    return lambda handler: RestEndpoint(verb, path, handler.__doc__ or "", handler, needs, gives, **more)


def endpoints_of(module: Mapping[str, Any]) -> tuple[RestEndpoint, ...]:
    return tuple(value for value in module.values() if isinstance(value, RestEndpoint))


def check_query(request: Request, endpoint: RestEndpoint) -> None:
    """Raise InvalidArgumentError for an unknown query parameter; senders of data may add their own."""
    known = [parameter.name for parameter in endpoint.query]
    if endpoint.verb == "GET" and (unknown := request.query_params.keys() - set(known)):
        allowed = f"the parameters are {', '.join(known)}" if known else "this path takes none"
        raise InvalidArgumentError(f"unknown parameter {min(unknown)[:60]!r}: {allowed}")


async def read_body(request: Request, kind: Any) -> Any:
    """Decode the request's JSON as a `kind`; InvalidArgumentError names what is wrong."""
    if media_type(request) != JSON:
        raise HTTPException(415, f"send the body as Content-Type: {JSON}")
    data = await whole_body(request)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"the body does not match this endpoint's schema: {_of_json(error)}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the body is not JSON: {error}") from error


def _of_json(error: msgspec.ValidationError) -> str:
    """Return the message with JSON's names of types instead of Python's.

    >>> _of_json(msgspec.ValidationError("Expected `str | null`, got `int` - at `$.a`"))
    'Expected `string | null`, got `integer` - at `$.a`'
    """
    return _TYPE.sub(lambda match: _JSON_TYPES[match[0]], str(error))
