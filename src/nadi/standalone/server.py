"""One server: a segment store and a controller over one data folder, in one event loop.

The controller reaches segments through the store's in-process door, with the same commands that
others send over the wire. The REST port answers before the data is recovered, for health is asked there.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import urlsplit

from nadi.access.listener import raise_file_limit
from nadi.access.tls import ServerTls
from nadi.controller.access import ControllerAccess, with_token
from nadi.controller.controller import Controller
from nadi.controller.grpc.crowd import Crowd
from nadi.controller.grpc.server import add_controller, rpc_server
from nadi.controller.scaling.profile import profile_of
from nadi.controller.state.segments import Exchange
from nadi.defaults import DEFAULT_CONTROLLER_PORT, DEFAULT_HOST, DEFAULT_SCALING, DEFAULT_STORE_PORT
from nadi.errors import DataFolderTakenError, StorageFullError
from nadi.limits import LOG_MAX_BYTES, STOP_DOOR_S, STOP_STORE_S, THREAD_SWITCH_S
from nadi.naming import check_path
from nadi.observe.health import Component
from nadi.runtime import REAL
from nadi.segmentstore.store import SegmentStore
from nadi.standalone.figures import ServerFigures
from nadi.standalone.guards import gate_of, tls_of, token_key_of
from nadi.standalone.health import server_health
from nadi.standalone.intake import OwnIntake
from nadi.standalone.leaving import Leaving
from nadi.standalone.ports import listening
from nadi.standalone.security import ServerSecurity, is_any_address
from nadi.standalone.tiers import log_bound, tier2_of
from nadi.stopping import Ending
from nadi.web.door import Door
from nadi.web.own_index import OwnIndex

if TYPE_CHECKING:
    import grpc

    from nadi.controller.rest.endpoint import Api
    from nadi.controller.rest.intake import Intake
    from nadi.controller.rest.server import RestServer
    from nadi.web.clients import Clients

STOP_GRACE_S = 1.0


class Server:
    """`async with Server(folder) as server:` serves until the block ends.

    Ports of 0 are any free ones; `controller_uri` and `rest_uri` say which. A REST port of None: no REST.
    advertised_host: what clients are told to connect to, if not `host`. scaling: the profile by whose rules streams
    follow their load. tier2: the URL of a store that has its chunks (docs/tier2.md), "" is the folder itself;
    tier2_options: of it, such as `endpoint`. log_max_bytes: what the log of a container may hold while tier 2 takes
    nothing; then writers wait. Raises DataFolderError where the folder can't be used, StoreError where tier 2 can't,
    UnavailableError where a port is taken, InvalidArgumentError where `security` doesn't fit the address or its files.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        host: str = DEFAULT_HOST,
        store_port: int = DEFAULT_STORE_PORT,
        controller_port: int = DEFAULT_CONTROLLER_PORT,
        rest_port: int | None = None,
        containers: int | None = None,
        advertised_host: str | None = None,
        security: ServerSecurity | None = None,
        scaling: str = DEFAULT_SCALING,
        tier2: str = "",
        tier2_options: dict[str, str] | None = None,
        log_max_bytes: int = LOG_MAX_BYTES,
    ) -> None:
        self.folder = check_path("the data folder", folder)
        self._tier2 = tier2_of(tier2, tier2_options or {})
        self._log_max_bytes = log_bound(log_max_bytes)
        self._host = host
        self._store_port = store_port
        self._controller_port = controller_port
        self._rest_port = rest_port
        self._containers = containers
        self._advertised_host = advertised_host
        self._security = security or ServerSecurity()
        self._scaling = profile_of(scaling)
        self.store_address = ("", 0)
        self.controller_uri = ""
        self.rest_uri = ""
        self._rest: RestServer | None = None
        self._api: Api | None = None
        self._intake: Intake | None = None
        self._clients: Clients | None = None
        self._answering: Controller | None = None  # while it takes calls

    @property
    def where(self) -> str:
        return str(self.folder)

    async def start(self) -> None:
        security = self._security
        security.check_address(self._host, self._advertised_host)
        tls, tokens = tls_of(security), token_key_of(security, self.folder)
        context = tls.ssl_context() if tls is not None else None
        async with Ending() as parts:
            self.store = SegmentStore(
                self.folder, self._containers, tokens, tier2=self._tier2, log_max_bytes=self._log_max_bytes
            )
            parts.step("the data folder", self.store.close, STOP_STORE_S)
            self.gate = gate_of(security)
            if self.gate is not None:
                parts.callback(self.gate.close)
            self._figures = ServerFigures(self.store, self.gate, REAL)
            if self._rest_port is not None:
                self._rest = await self._listening_rest(self._rest_port, context)
                parts.step("the REST door", self._rest.stop, STOP_DOOR_S)
                self.rest_uri = self._rest.uri
            await self.store.start()
            await self._listen_store(context)
            exchange = self.store.exchange if tokens is None else with_token(self.store.exchange, tokens.master())
            self.controller = Controller(
                exchange,
                endpoint_of=lambda segment: self.store_address,
                rpc_endpoint=(self.store_address[0], self._controller_port),
                scaling=self._scaling,
            )
            parts.step("the controller", self.controller.stop, STOP_DOOR_S)
            await self._start_controller(exchange)
            access = None if self.gate is None or tokens is None else ControllerAccess(self.gate, tokens)
            await self._start_rpc(tls, access)
            parts.callback(self._crowd.close)
            parts.step("the doors of gRPC and REST", self._stop_answering, STOP_DOOR_S)
            if self._api is not None:
                intake = OwnIntake(lambda: self.controller_uri, security, alone=True)
                parts.step("what was taken in over HTTP", intake.close, STOP_DOOR_S)
                self._intake = intake
            if self._clients is not None:
                self._clients.door = self._own_door()
                parts.step("the live page's clients", self._clients.close, STOP_DOOR_S)
            index = OwnIndex(self._own_door("" if tokens is None else tokens.master()))
            parts.step("the index of event times", index.close, STOP_DOOR_S)
            self.controller.retention.index_times = index.bring_up
            self._leaving = Leaving(self.folder, self.store)
            parts.step("a migration's hold", self._leaving.stop, STOP_DOOR_S)
            self._parts = parts.pop_all()
        self._answers(self.controller)

    async def _listening_rest(self, port: int, context: ssl.SSLContext | None) -> RestServer:
        # a server without REST starts a tenth of a second earlier without these
        from nadi.controller.metrics.scrape import OwnMetrics
        from nadi.controller.rest.access import RestAccess
        from nadi.controller.rest.endpoint import Api
        from nadi.controller.rest.server import RestServer
        from nadi.web.clients import Clients
        from nadi.web.site import live_site

        self._clients = Clients()
        own, site = OwnMetrics(self._figures.samples, REAL), live_site(self._clients)
        self._api = Api(self._health, RestAccess(self.gate), own_metrics=own, budget=self.store.budget, site=site)
        rest = RestServer(self._api, self._host, port, context)
        self._figures.rests.append(rest.listener)
        with listening(self._host, port, "--rest-port"):
            await rest.start()
        return rest

    async def _listen_store(self, context: ssl.SSLContext | None) -> None:
        with listening(self._host, self._store_port, "--store-port"):
            self._listening_store = address, port = await self.store.listen(self._host, self._store_port, context)
        # a certificate bears names rather than numbers
        self.store_address = (self._advertised_host or (self._host if context is not None else address), port)

    async def _start_controller(self, exchange: Exchange) -> None:
        try:
            await self.controller.start()
        except StorageFullError as error:
            raise StorageFullError(
                f"no room in the data folder {self.folder} ({error}): free space on its disk, then start again"
            ) from error

    async def _start_rpc(self, tls: ServerTls | None, access: ControllerAccess | None) -> None:
        self._rpc = rpc_server()
        self._figures.rpc.append(add_controller(self._rpc, self.controller, access))
        port = open_rpc(self._rpc, self._host, self._controller_port, tls)
        told = self._advertised_host or self._host
        self._rpc_port = port
        self.controller.rpc_endpoint = (told, port)
        self.controller.rest_port = urlsplit(self.rest_uri).port or 0
        await self._rpc.start()
        self._crowd = Crowd(port, has_tls=tls is not None)
        self._crowd.start()
        self.controller_uri = f"{'tcp' if tls is None else 'tls'}://{told}:{port}"

    def _own_door(self, token: str = "") -> Door:
        """Whatever clients are told, it is in this process."""
        host = DEFAULT_HOST if is_any_address(self._host) else self._host
        certificate, store = self._security.tls_certificate, (host, self._listening_store[1])
        return Door(
            f"[{host}]:{self._rpc_port}" if ":" in host else f"{host}:{self._rpc_port}",
            lambda segment: store,
            certificate is not None,
            None if certificate is None else str(certificate),
            is_own=True,
            token=token,
        )

    def _health(self) -> Component:
        return server_health(self.store, self._answering, self.controller_uri)

    def _answers(self, controller: Controller | None) -> None:
        self._answering = controller
        if self._api is not None:
            self._api.controller = controller
            self._api.intake = self._intake if controller is not None else None
            self._api.left = self._leaving if controller is not None else None

    async def stop(self) -> None:
        """Clean stop: requests under way are answered, state is written, the folder is released."""
        await self._parts.aclose()

    async def _stop_answering(self) -> None:
        rest = self._rest.stop() if self._rest is not None else asyncio.sleep(0)
        await asyncio.gather(self._rpc.stop(STOP_GRACE_S), rest)
        self._answers(None)

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def open_rpc(rpc: grpc.aio.Server, host: str, port: int, tls: ServerTls | None) -> int:
    """Let a gRPC server, before it starts, listen there; return the port. UnavailableError if it is taken."""
    door = f"{host}:{port}"
    credentials = None if tls is None else tls.grpc_credentials()
    with listening(host, port, "--port"):
        found: int = rpc.add_insecure_port(door) if credentials is None else rpc.add_secure_port(door, credentials)
        if found == 0:
            raise RuntimeError("the address is in use")
    return found


class Served(Protocol):
    """What `serve` serves: one of a data folder, or one of a cluster."""

    store: SegmentStore
    store_address: tuple[str, int]
    controller_uri: str
    rest_uri: str

    @property
    def where(self) -> str:
        """What it keeps its data in."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *_: object) -> None: ...


S = TypeVar("S", bound=Served)


async def serve(
    server: S,
    ready: Callable[[S], None],
    until: asyncio.Event | None = None,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM, SIGINT or `until`; `ready` is called once clients can connect, `stopping` when it is to
    stop.

    Told so while it starts, it stops once it has started, for threads may write what is half open; it is never ready.

    DataFolderTakenError: it has stopped, because another server has the data folder. StoreError: likewise, because
    tier 2 is another's, or was emptied.
    """
    raise_file_limit()
    sys.setswitchinterval(THREAD_SWITCH_S)
    stop = until or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    async def until_told() -> None:
        await stop.wait()
        stopping()

    told = asyncio.create_task(until_told())
    try:
        async with server:
            if not stop.is_set():
                # What lives as long as the process: a full collection that walks it stops all for 20 ms and more.
                gc.collect()
                gc.freeze()
                ready(server)
            taken = asyncio.create_task(server.store.taken.wait())
            await asyncio.wait([told, taken], return_when=asyncio.FIRST_COMPLETED)
            taken.cancel()
            stop.set()
            await told
    finally:
        told.cancel()
    claim = server.store.chunks.claim
    if claim is not None and claim.lost is not None:
        raise claim.lost.with_traceback(None)
    if server.store.taken.is_set():
        raise DataFolderTakenError(server.where)
