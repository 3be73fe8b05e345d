"""REST of a cluster's servers, with the credentials and certificates that clients use."""

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
    """What a server answered, and when by its clock, as HTTP has it."""

    body: bytes
    date: str


class RestClient:
    """One server's REST, http://host:port or https://…, and what is to be trusted there."""

    def __init__(self, rest: str, trust_store: str | None) -> None:
        from nadi.client.control.security import security_of

        parts = urlsplit(rest)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
            raise InvalidArgumentError(f"{rest!r} is not a server's REST address: write it as http://host:9091")
        self.first, self._scheme = rest.rstrip("/"), parts.scheme
        scheme = "tls" if parts.scheme == "https" else "tcp"
        self._security = security_of(f"{scheme}://{parts.netloc}", trust_store=trust_store)
        self._tls = self._security.ssl_context()

    def asked(self, verb: str, url: str, kind: type[T], body: object = None, *, within_s: float = _ANSWER_S) -> T:
        """The answer, which is a `kind`; None is an empty one."""
        headers = {"Accept": "application/json"} | self._headers()
        data = b"" if verb == "POST" else None
        if body is not None:
            headers["Content-Type"], data = "application/json", msgspec.json.encode(body)
        request = Request(url, method=verb, headers=headers, data=data)
        try:
            return msgspec.json.decode(self._answer(request, within_s).body or b"null", type=kind)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"{url} answers with something else than a report: {error}") from error

    def text(self, url: str, *, within_s: float = _ANSWER_S) -> Answer:
        """What is at the address, as it is."""
        return self._answer(Request(url, headers=self._headers()), within_s)

    def _headers(self) -> dict[str, str]:
        credentials = self._security.credentials
        return {} if credentials is None else {"Authorization": credentials.header()}

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
                f"{url} gives no answer ({reason}): is a server there, with that REST port?"
            ) from error


class Servers(RestClient):
    """Those of a cluster, from one of them on. rest: its REST address."""

    def report(self, rest: str = "") -> ClusterReport:
        return self.asked("GET", f"{rest or self.first}/v1/cluster", ClusterReport)

    def begin(self, what: str, rest: str) -> DrainReport:
        """Ask the server there to begin to drain, or to rebalance."""
        return self.asked("POST", f"{rest}/v1/cluster/{what}", DrainReport)

    def rest_of(self, server: ServerReport) -> str:
        """Where a server's REST answers; InvalidArgumentError if it has none."""
        if not server.rest:
            raise InvalidArgumentError(f"server {server.id} has no REST port: stop it instead, which drains it, too")
        return f"{self._scheme}://{server.rest}"


def named(report: ClusterReport, server: str) -> ServerReport:
    """The server of that id, or whose id begins so, or that answers at that address; "" is the one that reports.

    Raises:
        NotFoundError: there is none.
        InvalidArgumentError: there are several.
    """
    wanted = server or report.seen_by
    exact = [one for one in report.servers if wanted in (one.id, one.store, one.controller, one.rest)]
    servers = exact or [one for one in report.servers if one.id.startswith(wanted)]
    if not servers:
        raise NotFoundError(f"there is no server {wanted!r} in this cluster: see `nadi cluster status`")
    if len(servers) > 1:
        raise InvalidArgumentError(f"{len(servers)} servers have ids that begin with {wanted!r}: give more of it")
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
