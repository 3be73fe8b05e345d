"""REST client for a cluster's servers, with the same credentials and certificates as the other clients."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec

from nadi.errors import ConflictError, InvalidArgumentError, NotFoundError, PermissionDeniedError, UnavailableError
from nadi.observe.cluster import ClusterReport, DrainReport, ServerReport

T = TypeVar("T")
_ANSWER_S = 10.0
_ERRORS: dict[int, type[Exception]] = {404: NotFoundError, 409: ConflictError}


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: its body, and its `Date` header."""

    body: bytes
    date: str


class RestClient:
    """REST API of one server at http://host:port or https://host:port."""

    def __init__(self, rest: str, trust_store: str | None) -> None:
        from nadi.client.control.security import security_of

        parts = urlsplit(rest)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
            raise InvalidArgumentError(f"{rest!r} is not a REST address: use http://host:9091")
        self.first, self._scheme = rest.rstrip("/"), parts.scheme
        scheme = "tls" if parts.scheme == "https" else "tcp"
        self._security = security_of(f"{scheme}://{parts.netloc}", trust_store=trust_store)
        self._tls = self._security.ssl_context()

    def request(self, verb: str, url: str, kind: type[T], body: object = None, *, within_s: float = _ANSWER_S) -> T:
        """Send a request and decode the response as `kind`; an empty response is None."""
        headers = {"Accept": "application/json"} | self._headers()
        data = b"" if verb == "POST" else None
        if body is not None:
            headers["Content-Type"], data = "application/json", msgspec.json.encode(body)
        request = Request(url, method=verb, headers=headers, data=data)
        try:
            return msgspec.json.decode(self._answer(request, within_s).body or b"null", type=kind)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"{url} returned an unexpected response: {error}") from error

    def text(self, url: str, *, within_s: float = _ANSWER_S) -> Answer:
        """Return the response as is."""
        return self._answer(Request(url, headers=self._headers()), within_s)

    def _headers(self) -> dict[str, str]:
        credentials = self._security.credentials
        header = None if credentials is None else credentials.header()
        return {} if header is None else {"Authorization": header}

    def _answer(self, request: Request, within_s: float) -> Answer:
        url = request.full_url
        try:
            with urlopen(request, timeout=within_s, context=self._tls) as answer:
                return Answer(answer.read(), answer.headers.get("Date", ""))
        except HTTPError as error:
            with error:
                raise _refusal(url, error) from error
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(
                f"{url} is unreachable ({reason}): check that a server is running with this REST port"
            ) from error


class Servers(RestClient):
    """REST API of a cluster's servers, starting from one of them."""

    def report(self, rest: str = "") -> ClusterReport:
        return self.request("GET", f"{rest or self.first}/v1/cluster", ClusterReport)

    def begin(self, what: str, rest: str) -> DrainReport:
        """Ask the server at this address to start to `drain` or `rebalance`."""
        return self.request("POST", f"{rest}/v1/cluster/{what}", DrainReport)

    def rest_of(self, server: ServerReport) -> str:
        """Return a server's REST address; InvalidArgumentError if it doesn't serve REST."""
        if not server.rest:
            raise InvalidArgumentError(f"server {server.id} doesn't serve REST: stop it instead, which also drains it")
        return f"{self._scheme}://{server.rest}"


def named(report: ClusterReport, server: str) -> ServerReport:
    """Return the server with this id, id prefix or address; "" is the reporting server.

    Raises:
        NotFoundError: no server matches.
        InvalidArgumentError: several servers match.
    """
    name = server or report.reported_by
    exact = [each for each in report.servers if name in (each.id, each.store, each.controller, each.rest)]
    servers = exact or [each for each in report.servers if each.id.startswith(name)]
    if not servers:
        raise NotFoundError(f"server {name!r} isn't in this cluster: see `nadi cluster status`")
    if len(servers) > 1:
        raise InvalidArgumentError(f"{len(servers)} servers have ids that begin with {name!r}: use a longer prefix")
    return servers[0]


def _refusal(url: str, error: HTTPError) -> Exception:
    reason: Any = None
    try:
        reason = json.loads(error.read()).get("error")
    except (OSError, ValueError, AttributeError):
        reason = error.reason
    if error.code in (401, 403):
        return PermissionDeniedError(f"{url}: {reason}")
    return _ERRORS.get(error.code, UnavailableError)(f"{url}: {reason}")
