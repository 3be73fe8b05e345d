"""Assembles a server: ports for REST, gRPC, and appends and reads; TLS and logins; metrics; its internal clients.

`ServerAssembly` is common to the server of a data folder (`server`) and of a cluster (`clustered`). They add what is
behind the ports: the segment store, the controller or proxy, and the start order. `serve` runs a server until it is
stopped. The REST port opens before the data is recovered, so that health can be queried meanwhile. Its modules and
numpy, a third of the work of a start, are imported soon after it: a first acknowledgement doesn't need them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import nadi
from nadi.access.audit import AuditTrail
from nadi.access.authentication import Gate
from nadi.access.fair_shares import Shares
from nadi.access.listener import bound_sockets, raise_file_limit, uri_of
from nadi.access.quotas import Share
from nadi.access.tls import ClientCertificates, ServerTls
from nadi.config import ServerConfig, ServerSecurity
from nadi.controller.grpc.server import rpc_server
from nadi.defaults import DEFAULT_STORE_PORT
from nadi.errors import DataFolderTakeoverError
from nadi.limits import INGEST_ANSWER_S, METRICS_GROUPS, PAGE_ANSWER_S, REST_SOCKET_BYTES, STOP_PORT_S, THREAD_SWITCH_S
from nadi.loopback_clients import OwnClients, ServerPorts
from nadi.naming import AUDIT_STREAM, INTERNAL_SCOPE, check_path
from nadi.observe.health import Component
from nadi.observe.metrics import MetricDefinition, Sample, Value, by_name
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.metrics import samples
from nadi.segmentstore.store import SegmentStore
from nadi.shutdown import ShutdownSteps
from nadi.standalone.ports import listening

if TYPE_CHECKING:
    import grpc

    from nadi.client.aio import EventWriter, StreamManager
    from nadi.cluster.proxy.rest import RestProxy
    from nadi.controller.rest.endpoint import Api
    from nadi.controller.rest.intake import DataRequest, RejectedRecords
    from nadi.controller.rest.server import RestServer
    from nadi.controller.state.metadata import StreamName
    from nadi.ingest.intake import HttpIntake
    from nadi.kafka.server import KafkaDoor

STOP_GRACE_S = 1.0
_IMPORT_LATE_S = 1.0
_M_ARENA_MAX = -8  # of malloc.h
MEANINGS = by_name(
    (
        MetricDefinition("nadi_build_info", "Always 1, with nadi's version as a label.", ("version",)),
        MetricDefinition("nadi_connections", "Open connections, by port (store, rest or kafka).", ("port",)),
        MetricDefinition("nadi_connections_refused", "Connections rejected at a limit, by port.", ("port",), "counter"),
        MetricDefinition(
            "nadi_connections_ended", "Connections evicted in favour of others, by port.", ("port",), "counter"
        ),
        MetricDefinition(
            "nadi_kafka_group_lag_records",
            "Records that a Kafka group has yet to commit; of the server with the active controller and a Kafka port.",
            ("scope", "group", "stream"),
        ),
        MetricDefinition("nadi_rpc_calls", "RPC calls over gRPC in progress."),
        MetricDefinition(
            "nadi_rpc_calls_refused", "RPC calls over gRPC rejected because their address had too many.", (), "counter"
        ),
        MetricDefinition("nadi_logins_failed", "Calls and requests without valid credentials.", (), "counter"),
        MetricDefinition(
            "nadi_permissions_refused", "Calls and requests without the required permission.", (), "counter"
        ),
    )
)


class ServerAssembly:
    """Server that runs within `async with`.

    A kind of server defines `where`, `_assemble` and `_health`, and creates `store` before the first port opens.
    store_address, controller_uri, rest_uri, kafka_address: as given to clients; empty until the port is open.
    """

    store: SegmentStore
    where: str  # data folder or URL of the store

    def __init__(self, config: ServerConfig, runtime: Runtime = REAL) -> None:
        config.check()
        self._config, self._runtime = config, runtime
        self.store_address, self.controller_uri, self.rest_uri = ("", 0), "", ""
        self.kafka_address = ""
        self._rpc_address = ("", 0)
        self._own_rest = ""  # URI of this process's own REST port, besides a shared one
        self._api: Api | None = None
        self._api_uses: list[Callable[[Api], None]] = []
        self._bound: list[list[socket.socket]] = []  # of each REST port
        self._rests: list[RestServer] = []
        self._rest_due = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._page = OwnClients(PAGE_ANSWER_S)
        self._calls: list[Shares] = []
        self._kafka: KafkaDoor | None = None
        self._more_samples: Callable[[], Iterable[Sample]] = tuple

    async def start(self) -> None:
        security = self._config.security
        security.check_address(self._config.host, self._config.advertised_host)
        self._tls = tls_of(security, connects=True)
        self.gate = gate_of(security)
        if self.gate is not None and security.audit_retention_ms is not None:
            self.gate.begin_audit(AuditTrail(self._config.advertised_host or self._config.host, self._runtime))
        self._contexts = self._tls.context if self._tls is not None else None
        async with ShutdownSteps() as parts:
            if self.gate is not None:
                parts.callback(self.gate.close)
            await self._assemble(parts)
            self._parts = parts.pop_all()

    async def _assemble(self, parts: ShutdownSteps) -> None:
        """Start everything; shutdown steps are added to `parts`."""
        raise NotImplementedError

    def _health(self) -> Component:
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop cleanly: answer requests under way, write the state, release locks."""
        await self._parts.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _listen_rest(self, parts: ShutdownSteps) -> None:
        """Open the server's own REST port, then the shared one. The first connection waits for `_serve_rest`."""
        config, scheme = self._config, "http" if self._tls is None else "https"
        if config.rest_port is None:
            return
        shared = config.shared.rest if config.shared is not None else None
        for port in [config.rest_port] if shared is None else [config.rest_port, shared]:
            with listening(config.host, port, "--rest-port"):
                sockets = await bound_sockets(
                    config.host, port, shared=bool(self._bound), receive_bytes=REST_SOCKET_BYTES
                )
            self._bound.append(sockets)
            for each in sockets:
                each.listen()
                asyncio.get_running_loop().add_reader(each, self._rest_due.set)
        self._own_rest, self.rest_uri = uri_of(self._bound[0], scheme), uri_of(self._bound[-1], scheme)
        self._serving = asyncio.create_task(self._serve_rest_when_due())
        parts.step("the REST port", self._stop_rest, STOP_PORT_S)

    async def _serve_rest_when_due(self) -> None:
        await self._rest_due.wait()
        for each in chain.from_iterable(self._bound):
            asyncio.get_running_loop().remove_reader(each)
        await asyncio.to_thread(importlib.import_module, "nadi.web.site")
        await asyncio.to_thread(importlib.import_module, "nadi.controller.rest.server")
        self._serve_rest()

    def _serve_rest(self, proxy: Callable[[Api], RestProxy] | None = None) -> None:
        """Serve the open REST ports. proxy: wraps the application with the cluster's proxy."""
        from nadi.controller.metrics import OwnMetrics
        from nadi.controller.rest.endpoint import Api
        from nadi.controller.rest.server import RestServer
        from nadi.web.site import live_site

        own, site = OwnMetrics(self._samples, self._runtime), live_site(self._page)
        self._api = Api(self._health, self.gate, own_metrics=own, budget=self.store.budget, site=site)
        for use in self._api_uses:
            use(self._api)
        around = proxy(self._api) if proxy is not None else None
        for number, sockets in enumerate(self._bound):
            put = {} if around is None else {"around": partial(around.around, is_shared=number > 0)}
            rest = RestServer(self._api, self._tls, **put)
            self._rests.append(rest)
            rest.start(sockets)

    def _with_api(self, use: Callable[[Api], None]) -> None:
        """Call `use` with the state of the REST handlers, once there is one."""
        self._api_uses.append(use)
        if self._api is not None:
            use(self._api)

    async def _stop_rest(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        for rest in self._rests:
            await rest.stop()
        for each in chain.from_iterable(self._bound):
            if each.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(each)
                each.close()

    async def import_late(self) -> None:
        """Import what a first acknowledgement doesn't need, soon after the start."""
        await asyncio.sleep(_IMPORT_LATE_S)
        await asyncio.to_thread(importlib.import_module, "numpy")
        self._rest_due.set()
        if self._serving is not None:
            await self._serving
        gc.freeze()

    async def _listen_store(self) -> tuple[str, int]:
        host, advertised = self._config.host, self._config.advertised_host
        port = DEFAULT_STORE_PORT if self._config.store_port is None else self._config.store_port
        with listening(host, port, "--store-port"):
            address = await self.store.listen(host, port, self._contexts)
        # certificates usually name hosts rather than addresses
        self.store_address = (advertised or (host if self._tls is not None else address[0]), address[1])
        return address

    async def _listen_rpc(
        self, parts: ShutdownSteps, port: int, add: Callable[[grpc.aio.Server], Shares], *, shares_port: bool = False
    ) -> None:
        """Open a gRPC port. add: makes a server that isn't started yet answer calls; `_rpc_address` is set by then."""
        host, tls = self._config.host, self._tls
        rpc = rpc_server(shares_port=shares_port)
        address, credentials = f"{host}:{port}", tls.grpc_credentials() if tls is not None else None
        with listening(host, port, "--port"):
            port = rpc.add_secure_port(address, credentials) if credentials else rpc.add_insecure_port(address)
            if port == 0:
                raise RuntimeError("the address is in use")
        advertised = self._config.advertised_host or host
        if not shares_port:
            self._rpc_address = (advertised, port)
        self._calls.append(add(rpc))
        await rpc.start()
        parts.step("the gRPC port", partial(rpc.stop, STOP_GRACE_S), STOP_PORT_S)
        self.controller_uri = f"{'tcp' if tls is None else 'tls'}://{advertised}:{port}"

    def _open_own_clients(self, parts: ShutdownSteps, ports: ServerPorts, index: OwnClients) -> None:
        """Connect the web page and the REST port's data requests to the server through its ordinary ports."""
        intake = _OwnIntake(OwnClients(INGEST_ANSWER_S, ports), authenticates=self._config.security.authenticates)
        self._page.ports = ports

        def use(api: Api) -> None:
            api.intake = intake

        self._with_api(use)

        async def close() -> None:
            await asyncio.gather(index.close(), intake.close(), self._page.close())

        parts.step("this server's internal clients", close, STOP_PORT_S)

    async def _listen_kafka(self, parts: ShutdownSteps, clients: OwnClients) -> None:
        """Open the port for Kafka clients. clients: with all rights."""
        config = self._config
        if config.kafka_port is None:
            return
        from nadi.kafka.server import DoorOptions, KafkaDoor  # most servers don't need it

        options = DoorOptions(host=config.host, port=config.kafka_port, advertised_host=config.advertised_host)
        own = "" if self.gate is None else self.gate.own_authorization
        manager = await parts.enter_async_context(clients.of(own))
        is_own = clients.ports is not None and clients.ports.token  # or the store counts what the door sends it
        quotas = self.store.quotas if is_own else None
        door = KafkaDoor(manager, options, gate=self.gate, tls=self._contexts, budget=self.store.budget, quotas=quotas)
        with listening(config.host, config.kafka_port, "--kafka-port"):
            await door.start()
        parts.step("the Kafka port", door.stop, STOP_PORT_S)
        self._kafka, self.kafka_address = door, door.address
        if config.rest_port is not None:
            measuring = asyncio.create_task(door.measure_lags(self._has_controller), name="measure Kafka groups")
            parts.callback(measuring.cancel)

    def _keep_audit(self, parts: ShutdownSteps, clients: OwnClients) -> None:
        """Write the audit records of this server, through clients with all rights."""
        if self.gate is None or self.gate.audit is None:
            return
        trail, own = self.gate.audit, self.gate.own_authorization
        writers: dict[StreamManager, EventWriter] = {}  # at most one: a client is closed when it isn't used

        async def store(records: Sequence[bytes]) -> None:
            async with clients.of(own) as manager:
                writer = writers.pop(manager, None) or await manager.create_writer(INTERNAL_SCOPE, AUDIT_STREAM)
                for ack in [await writer.write(record, "") for record in records]:
                    await ack
                writers.clear()
                writers[manager] = writer

        self.store.access.audit = trail
        parts.callback(asyncio.create_task(trail.keep(store), name="write audit records").cancel)
        parts.step("the audit records", trail.flush, STOP_PORT_S)

    def _keep_quotas(self, parts: ShutdownSteps, server: str, share: Share) -> None:
        """Exchange the use of quotas for shares with the active controller."""
        keeping = self.store.quotas.keep_shared(server, share, self._runtime.sleep)
        parts.callback(asyncio.create_task(keeping, name="share quotas").cancel)

    def _has_controller(self) -> bool:
        """Return whether this server reports on streams and groups."""
        return True

    def _kafka_lags(self) -> Iterator[Sample]:
        from nadi.controller.metrics import OTHERS

        lags = [] if self._kafka is None else sorted(self._kafka.lags, key=lambda lag: -(lag.lag_events or 0))
        for lag in lags[:METRICS_GROUPS]:
            stream = lag.stream.partition("/")[2]
            yield _sample("nadi_kafka_group_lag_records", lag.lag_events, lag.scope, lag.group, stream)
        if rest := lags[METRICS_GROUPS:]:
            total = sum(lag.lag_events or 0 for lag in rest)
            yield _sample("nadi_kafka_group_lag_records", total, "", OTHERS, OTHERS)

    def _samples(self) -> Iterator[Sample]:
        yield _sample("nadi_build_info", 1, nadi.__version__)
        yield from samples(self.store, self._runtime)
        ports = {"store": [self.store.listener] if self.store.listener else []}
        ports["kafka"] = [] if self._kafka is None else [self._kafka.listener]
        ports["rest"] = [rest.listener for rest in self._rests]
        for port, listeners in ports.items():
            yield _sample("nadi_connections", sum(len(listener.connections) for listener in listeners), port)
            yield _sample("nadi_connections_refused", sum(listener.refused for listener in listeners), port)
            yield _sample("nadi_connections_ended", sum(listener.ended for listener in listeners), port)
        yield from self._kafka_lags()
        yield _sample("nadi_rpc_calls", sum(calls.entered for calls in self._calls))
        yield _sample("nadi_rpc_calls_refused", sum(calls.refused for calls in self._calls))
        if self.gate is not None:
            if self.gate.audit is not None:
                yield from self.gate.audit.samples()
            yield _sample("nadi_logins_failed", self.gate.failed_logins)
            yield _sample("nadi_permissions_refused", self.gate.refusals)
        yield from self.store.quotas.samples()
        yield from self._more_samples()


def _sample(name: str, value: Value, *labels: str) -> Sample:
    return Sample(MEANINGS[name], value, labels)


def tls_of(security: ServerSecurity, *, connects: bool = False) -> ServerTls | None:
    """Return the server's certificate and key; None without TLS. connects: see `ServerTls`."""
    if security.tls_certificate is None or security.tls_key is None:
        return None
    certificate, key = security.tls_certificate, security.tls_key
    return ServerTls(
        check_path("the TLS certificate", certificate),
        check_path("the TLS key", key),
        _path("the authorities of clients", security.tls_client_ca),
        _path("the revocation lists", security.tls_client_crl),
        connects=connects,
    )


def own_certificate(security: ServerSecurity) -> tuple[str, str] | None:
    """Return the files that servers present to each other and to themselves; None if clients need no certificate."""
    if security.tls_client_ca is None:
        return None
    return str(security.tls_certificate), str(security.tls_key)


def gate_of(security: ServerSecurity) -> Gate | None:
    """Return the authenticator of callers; None if they needn't authenticate. InvalidArgumentError: a file of users or
    keys is invalid."""
    if not security.authenticates:
        return None
    bearer = None
    if security.bearer_keys is not None:
        from nadi.access.bearer import BearerSettings

        bearer = BearerSettings(
            str(security.bearer_keys), security.bearer_issuer, security.bearer_audience, security.bearer_claim
        )
    certificates = None
    if security.tls_client_ca is not None:
        crl = _path("the revocation lists", security.tls_client_crl)
        certificates = ClientCertificates(security.tls_client_user, crl)
    return Gate(_path("the users file", security.users_file), bearer, certificates)


def _path(label: str, path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else check_path(label, path)


class _OwnIntake:
    """`Intake` of a server for data sent to its REST port, through clients of its own ports. Imports the implementation
    with the first request, which most servers never get, to start faster."""

    def __init__(self, clients: OwnClients, *, authenticates: bool) -> None:
        self._clients, self._authenticates = clients, authenticates
        self._opening = asyncio.Lock()
        self._intake: HttpIntake | None = None

    async def events(self, stream: StreamName, sent: DataRequest) -> int:
        return await (await self._open()).events(stream, sent)

    async def logs(self, stream: StreamName, sent: DataRequest) -> RejectedRecords | None:
        return await (await self._open()).logs(stream, sent)

    async def close(self) -> None:
        await (self._intake or self._clients).close()

    async def _open(self) -> HttpIntake:
        async with self._opening:
            if self._intake is None:
                await asyncio.to_thread(importlib.import_module, "nadi.ingest.intake")
                from nadi.ingest.intake import HttpIntake

                self._intake = HttpIntake(self._clients, authenticates=self._authenticates)
            return self._intake


def _use_one_heap() -> None:
    """Make glibc use one heap. By default threads have several, and what one frees another can't reuse: after writing
    and reading 300 MB, a server would take 506 MB instead of 319."""
    with contextlib.suppress(AttributeError):  # of another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


S = TypeVar("S", bound=ServerAssembly)


async def serve(
    server: S,
    ready: Callable[[S], None],
    until: asyncio.Event | None = None,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM, SIGINT or `until`.

    ready: called once clients can connect. stopping: called when the server begins to stop. A stop during the start
    takes effect once it has started, because threads may be writing; `ready` isn't called then.
    DataFolderTakeoverError: stopped because another server has the data folder. StoreError: stopped because tier 2 has
    another owner, or was emptied.
    """
    _use_one_heap()
    raise_file_limit()
    sys.setswitchinterval(THREAD_SWITCH_S)
    stop = until or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    async def until_stopped() -> None:
        await stop.wait()
        stopping()

    stop_task = asyncio.create_task(until_stopped())
    try:
        async with server:
            if not stop.is_set():
                # exempt long-lived objects: a full collection of them blocks everything for 20 ms or more
                gc.freeze()
                gc.enable()
                ready(server)
            late = asyncio.create_task(server.import_late())
            taken = asyncio.create_task(server.store.taken_over.wait())
            await asyncio.wait([stop_task, taken], return_when=asyncio.FIRST_COMPLETED)
            taken.cancel()
            stop.set()
            late.cancel()
            await stop_task
    finally:
        stop_task.cancel()
    claim = server.store.chunks.claim
    if claim is not None and claim.lost is not None:
        raise claim.lost.with_traceback(None)
    if server.store.taken_over.is_set():
        raise DataFolderTakeoverError(server.where)
