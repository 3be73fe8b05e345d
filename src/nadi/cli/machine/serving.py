"""The server: whether one is there, whether its ports are free, how it is, and whether its clock and version fit."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from nadi import __version__
from nadi.cli.cluster.asking import RestClient
from nadi.cli.machine.finding import Finding, note, ok, wrong
from nadi.defaults import DEFAULT_REST_PORT
from nadi.errors import AccessDeniedError, NadiError
from nadi.observe.health import Component, Status

_CONNECT_S, _ANSWER_S = 1.0, 5.0
_CLOCK_NOTE_S, _CLOCK_WRONG_S = 3.0, 60.0
_CREDENTIALS = "set name and password, or a token, in the environment (docs/security.md)"


@dataclass(frozen=True, slots=True)
class Addresses:
    """controller: tcp://host:port. rest: http://host:port. store: host:port of this machine, where a server would
    listen; is_wanted: the user named the controller, so a server should be there."""

    controller: str
    rest: str
    store: str
    is_wanted: bool
    trust_store: str | None


def looked_at(where: Addresses) -> list[Finding]:
    controller = urlsplit(where.controller).netloc
    rest = urlsplit(where.rest).netloc
    if not _answers(controller):
        return [_nobody(where, controller), *(_free(name, at) for name, at in (("REST", rest), ("store", where.store)))]
    found = [_controller(where, controller)]
    if not _answers(rest):
        advice = "without it neither health nor metrics can be seen: start the server with --rest-port, or give --rest"
        return [*found, note("REST", f"nobody listens at {rest}", advice)]
    try:
        return [*found, *_by_rest(RestClient(where.rest, where.trust_store), where.rest)]
    except AccessDeniedError as error:
        return [*found, note("health", f"not to be seen by everybody: {error}", _CREDENTIALS)]
    except NadiError as error:
        return [*found, wrong("REST", str(error), "see whether that is nadi's REST port, or give it with --rest")]


def rest_beside(controller: str, trust_store: str | None) -> str:
    """The REST address of a controller's server: at the port that the controller says, or the default one."""
    from nadi.client import StreamManager
    from nadi.client.blocking.face import inside
    from nadi.client.control.security import split_uri
    from nadi.client.manager.streams import stores_of

    address, is_secure = split_uri(controller)
    port = 0
    if _answers(address):
        # If this fails, the request to the default port reports why.
        with suppress(NadiError), StreamManager(controller, trust_store=trust_store, timeout=_ANSWER_S) as manager:
            thread, core = inside(manager)
            port = thread.run(stores_of(core).controller.rest_port())
    host = address.rpartition(":")[0]
    return f"{'https' if is_secure else 'http'}://{host}:{port or DEFAULT_REST_PORT}"


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _nobody(where: Addresses, controller: str) -> Finding:
    if where.is_wanted:
        advice = "start it (nadi up), or see whether a firewall lets nobody through"
        return wrong("controller", f"nobody listens at {controller}", advice)
    return ok("controller", f"the port is free, no server is at {controller}: nadi up starts one")


def _free(name: str, address: str) -> Finding:
    if _answers(address):
        advice = f"stop it, or give nadi up another --{name.lower()}-port"
        return wrong(name, f"another program listens at {address}", advice)
    return ok(name, f"the port is free: {address}")


def _controller(where: Addresses, controller: str) -> Finding:
    from nadi.client import StreamManager

    began = time.perf_counter()
    try:
        with StreamManager(where.controller, trust_store=where.trust_store, timeout=_ANSWER_S) as manager:
            scopes = manager.list_scopes()
    except AccessDeniedError as error:
        return wrong("controller", f"{controller} lets nobody in so: {error}", _CREDENTIALS)
    except NadiError as error:
        advice = "see whether that is nadi's controller, and whether it is tcp:// or tls://"
        return wrong("controller", f"{controller} gives no answer: {error}", advice)
    took_ms = (time.perf_counter() - began) * 1000
    known = sum(not scope.startswith("_") for scope in scopes)
    return ok("controller", f"{controller} answers in {took_ms:.0f} ms, and has {known:,} scopes")


def _by_rest(client: RestClient, rest: str) -> list[Finding]:
    began = time.time()
    ping = client.text(f"{rest}/ping", within_s=_ANSWER_S)
    middle = (began + time.time()) / 2
    found = [_clock(ping.date, middle), _version(client.text(f"{rest}/metrics", within_s=_ANSWER_S).body.decode())]
    health = client.asked("GET", f"{rest}/v1/health", Component, within_s=_ANSWER_S)
    return [*found, _health(health)]


def _clock(date: str, here_s: float) -> Finding:
    """By a header that has whole seconds, cut off."""
    try:
        ahead_s = parsedate_to_datetime(date).timestamp() + 0.5 - here_s
    except ValueError:
        return note("clock", "the server doesn't say what time it is", "something between may leave that out")
    found = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    advice = "let both follow a time server: times of cuts, leases and tokens go by the server's clock"
    if abs(ahead_s) > _CLOCK_WRONG_S:
        return wrong("clock", f"the server's is {found}", advice)
    if abs(ahead_s) > _CLOCK_NOTE_S:
        return note("clock", f"the server's is {found}", advice)
    return ok("clock", "the server's is the same as this machine's, to a second")


def _version(metrics: str) -> Finding:
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "nadi_build_info":
                there = sample.labels["version"]
                if there == __version__:
                    return ok("version", f"{there}, here and there")
                advice = "use the same version on both sides, or the newer one on the server's"
                return note("version", f"{there} on the server, {__version__} here", advice)
    return note("version", "the server doesn't say", "on a cluster, ask each server: --rest")


def _health(health: Component) -> Finding:
    ill = [one for one in _leaves(health) if one.status is not Status.UP or not one.readiness]
    if not ill:
        return ok("health", "all parts of the server are up and ready")
    said = "; ".join(f"{one.name} is {one.status.value}{_why(one)}" for one in ill[:5])
    more = f"; and {len(ill) - 5} more" if len(ill) > 5 else ""
    return wrong("health", said + more, "see the server's log, and docs/operations.md")


def _leaves(one: Component) -> list[Component]:
    return [leaf for child in one.children.values() for leaf in _leaves(child)] if one.children else [one]


def _why(one: Component) -> str:
    details = ", ".join(f"{name}: {value}" for name, value in one.details.items() if value not in (None, "", 0, False))
    return f" ({details[:200]})" if details else ""
