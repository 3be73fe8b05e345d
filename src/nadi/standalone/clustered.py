"""One server of a cluster, with its doors: `cluster.node` over the store of a URL. What it keeps on this machine is a
copy that nobody needs.
"""

from __future__ import annotations

import shutil
import ssl
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import nadi
from nadi.client.control.security import Security
from nadi.cluster.node import Addresses, ClusterNode, NodeSettings, Stores
from nadi.cluster.operating.figures import samples
from nadi.cluster.servers.pace import GCS_PACE, MembershipPace
from nadi.controller.grpc.crowd import Crowd
from nadi.controller.grpc.server import rpc_server
from nadi.controller.scaling.profile import profile_of
from nadi.defaults import DEFAULT_CONTROLLER_PORT, DEFAULT_HOST, DEFAULT_SCALING, DEFAULT_STORE_PORT
from nadi.engines.engine import LogEngine
from nadi.engines.identity import OwnLog, known_cluster
from nadi.engines.opening import log_name, open_engines, open_log
from nadi.engines.proof import prove_log
from nadi.errors import InvalidArgumentError
from nadi.limits import STOP_DOOR_S
from nadi.observe.health import Component, parent
from nadi.observe.logs import of_process
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.standalone.cache import emptied_cache
from nadi.standalone.embedded import SharedPorts
from nadi.standalone.figures import ServerFigures
from nadi.standalone.guards import gate_of, tls_of
from nadi.standalone.health import server_health
from nadi.standalone.intake import OwnIntake
from nadi.standalone.ports import listening
from nadi.standalone.profiles import profile_named
from nadi.standalone.security import ServerSecurity
from nadi.standalone.server import STOP_GRACE_S, open_rpc
from nadi.stopping import Ending
from nadi.web.door import Door
from nadi.web.own_index import OwnIndex

if TYPE_CHECKING:
    from nadi.controller.rest.endpoint import Api
    from nadi.controller.rest.server import RestServer
    from nadi.web.clients import Clients


class ClusterServer:
    """`async with ClusterServer("s3://bucket/prefix") as server:` serves until the block ends.

    url: of the store, `file:///folder` for processes of one machine. options: of it, such as `endpoint`, beside what
    its environment variables say. log: the URL of its log, `nats://host:4222/STREAM`, if that isn't in the store
    (docs/jetstream.md); log_options: see `engines.jetstream.where`. cache: a folder of this server's own, in which
    nothing is kept from one start to the next; None is a new one that goes with it. profile: see `profiles`; None is
    the one for what keeps the log. containers: of a new cluster. shared: ports at which it listens, too, together with
    others of this machine; clients are told of these. drains: whether a stop hands over what it has. The rest is as for
    `Server`.

    Raises:
        StoreError: the store can't hold a cluster.
        DataFolderError: another server uses the cache, or it is a data folder.
        InvalidArgumentError, UnavailableError: as for `Server`.
    """

    def __init__(
        self,
        url: str,
        *,
        options: dict[str, str] | None = None,
        log: str = "",
        log_options: dict[str, str] | None = None,
        cache: str | Path | None = None,
        profile: str | None = None,
        host: str = DEFAULT_HOST,
        store_port: int = DEFAULT_STORE_PORT,
        controller_port: int = DEFAULT_CONTROLLER_PORT,
        rest_port: int | None = None,
        containers: int | None = None,
        advertised_host: str | None = None,
        security: ServerSecurity | None = None,
        scaling: str = DEFAULT_SCALING,
        shared: SharedPorts | None = None,
        drains: bool = True,
        runtime: Runtime = REAL,
    ) -> None:
        self.url = url
        self._shared, self._drains = shared, drains
        self._options, self._cache_given = options or {}, cache
        self._log_url, self._log_options = log, log_options or {}
        self._profile = profile_named(profile, log or url)
        self._host, self._advertised_host = host, advertised_host
        self._store_port, self._controller_port, self._rest_port = store_port, controller_port, rest_port
        self._containers = containers
        self._security = security or ServerSecurity()
        self._scaling = profile_of(scaling)
        self._runtime = runtime
        self.store_address = ("", 0)
        self.controller_uri = ""
        self.rest_uri = self._own_rest = ""

    @property
    def where(self) -> str:
        return self.url

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        security = self._security
        security.check_address(self._host, self._advertised_host)
        if security.signing_key_file is not None:
            raise InvalidArgumentError("a cluster has a signing key of its own in its store: leave out --signing-key")
        async with Ending() as parts:
            await self._open_stores(parts)
            addresses = await self._listen(parts)
            index = OwnIndex(self._door(addresses.rpc, self.node.map.endpoint_of, self.node.own_token))
            parts.step("the index of event times", index.close, STOP_DOOR_S)
            self.node.join(addresses, parts, index.bring_up)
            if self._rest_port is not None:
                self._api.cluster = self.node.operator
                self._figures.more = lambda: samples(self.node.figures())
                self._api.intake = intake = OwnIntake(lambda: self._own_uri, security, alone=False)
                parts.step("what was taken in over HTTP", intake.close, STOP_DOOR_S)
            self._parts = parts.pop_all()
        try:
            await self.node.settled(self.url)
        except BaseException:
            await self.stop(drain=False)
            raise

    async def _open_stores(self, parts: Ending) -> None:
        """The object store, and this server's segment store over it."""
        engine, registry = await open_engines(self.url, self._runtime, **self._options)
        parts.step("the object store", engine.close, STOP_DOOR_S, after_all=True)
        self._tls, self.gate = tls_of(self._security), gate_of(self._security)
        if self.gate is not None:
            parts.callback(self.gate.close)
        cache = await self._open_cache(parts)
        authority = None if self._security.tls_authority is None else str(self._security.tls_authority)
        settings = NodeSettings(
            containers=self._containers,
            open_log=partial(self._own_log, engine, parts) if self._log_url else None,
            gate=self.gate,
            token_lifetime_s=self._security.token_lifetime_s,
            security=Security(tls=self._tls is not None, trust_store=authority),
            interval_s=self._profile.interval_s,
            pace=GCS_PACE if self.url.startswith("gs:") else MembershipPace(),
            scaling=self._scaling,
            version=nadi.__version__,
        )
        stores = Stores(engine, registry, ChunkStore.from_url(self.url, **self._options))
        self.node = ClusterNode(stores, cache, settings, self._runtime)
        await self.node.open(parts)
        self.id, self.cluster, self.store = self.node.id, self.node.cluster, self.node.store
        of_process(server=self.id)
        self._figures = ServerFigures(self.store, self.gate, self._runtime)

    async def _open_cache(self, parts: Ending) -> Path:
        if self._cache_given is None:
            self.cache = Path(tempfile.mkdtemp(prefix="nadi-cache-"))
            parts.callback(shutil.rmtree, self.cache, ignore_errors=True)
        else:
            lock, self.cache = await self._runtime.in_thread(emptied_cache, Path(self._cache_given))
            parts.step("the cache", partial(self._runtime.in_thread, lock.release), STOP_DOOR_S, after_all=True)
        return self.cache

    async def _own_log(self, store: LogEngine, parts: Ending) -> OwnLog:
        """Its stream is made for a new cluster alone: in place of one that was lost, servers that run would go on."""
        name = log_name(self._log_url, **self._log_options)
        known = await known_cluster(store, name, self._runtime)
        engine = await open_log(self._log_url, self._runtime, make=known is None, **self._log_options)
        parts.step("the log", engine.close, STOP_DOOR_S, after_all=True)
        await prove_log(engine, self._runtime)
        return OwnLog(name, engine)

    async def _listen(self, parts: Ending) -> Addresses:
        context = self._tls.ssl_context() if self._tls is not None else None
        if self._rest_port is not None:
            rests = await self._listening_rest(self._rest_port, context)
            for rest in rests:
                parts.step("the REST door", rest.stop, STOP_DOOR_S)
            self._own_rest, self.rest_uri = rests[0].uri, rests[-1].uri
        told = self._advertised_host
        with listening(self._host, self._store_port, "--store-port"):
            address, port = await self.store.listen(self._host, self._store_port, context)
        self.store_address = (told or (self._host if context is not None else address), port)
        rpc_address, self.controller_uri = await self._start_rpc(self._controller_port, parts)
        self._own_uri = self.controller_uri  # of this process, where others share a port
        if self._rest_port is not None:
            await self._open_clients(rpc_address, parts)
        if self._shared is not None:
            _, self.controller_uri = await self._start_rpc(self._shared.controller, parts, shares_port=True)
        return Addresses(self.store_address, rpc_address, self._own_rest.partition("://")[2])

    async def _listening_rest(self, port: int, context: ssl.SSLContext | None) -> list[RestServer]:
        """At its own port, and then at that which it shares."""
        from nadi.controller.metrics.scrape import OwnMetrics
        from nadi.controller.rest.endpoint import Api, RestAccess
        from nadi.controller.rest.server import RestServer
        from nadi.web.clients import Clients
        from nadi.web.site import live_site

        self._clients: Clients = Clients()
        access, site = RestAccess(self.gate), live_site(self._clients)
        own = OwnMetrics(self._figures.samples, self._runtime)
        self._api: Api = Api(self._health, access, own_metrics=own, budget=self.node.store.budget, site=site)
        ports = [port] if self._shared is None or self._shared.rest is None else [port, self._shared.rest]
        front, rests = self.node.front.rest(self._api), list[RestServer]()
        for one in ports:
            around = front.around_shared if rests else front.around
            rests.append(RestServer(self._api, self._host, one, context, around, shares_port=bool(rests)))
            with listening(self._host, one, "--rest-port"):
                await rests[-1].start()
        self._figures.rests += (rest.listener for rest in rests)
        return rests

    async def _open_clients(self, rpc_address: tuple[str, int], parts: Ending) -> None:
        """They go where all clients go, and trust what servers of the cluster trust."""
        self._clients.door = self._door(rpc_address)
        parts.step("the live page's clients", self._clients.close, STOP_DOOR_S)

    def _door(
        self, rpc: tuple[str, int], endpoint_of: Callable[[str], tuple[str, int]] | None = None, token: str = ""
    ) -> Door:
        authority = None if self._security.tls_authority is None else str(self._security.tls_authority)
        return Door(f"{rpc[0]}:{rpc[1]}", endpoint_of, self._tls is not None, authority, token=token)

    async def _start_rpc(self, port: int, parts: Ending, *, shares_port: bool = False) -> tuple[tuple[str, int], str]:
        """Return what it listens at, as clients are told: host and port, and the URI."""
        rpc, tls = rpc_server(shares_port=shares_port), self._tls
        self._figures.rpc.append(self.node.front.add_to(rpc))
        port = open_rpc(rpc, self._host, port, tls)
        told = self._advertised_host or self._host
        await rpc.start()
        crowd = Crowd(port, has_tls=tls is not None, runtime=self._runtime)
        crowd.start()
        parts.callback(crowd.close)
        parts.step("the gRPC door", partial(rpc.stop, STOP_GRACE_S), STOP_DOOR_S)
        return (told, port), f"{'tcp' if tls is None else 'tls'}://{told}:{port}"

    async def stop(self, *, drain: bool = True) -> None:
        """Clean stop, within CLUSTER_DRAIN_S. drain: first hand everything over to the other servers, if there are
        any."""
        if drain and self._drains:
            await self.node.drain()
        await self._parts.aclose()

    async def __aenter__(self) -> ClusterServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _health(self) -> Component:
        node = self.node
        health = server_health(self.store, node.seat.controller, self.controller_uri, node.controller_elsewhere())
        return parent(health.name, (*health.children.values(), node.health()))
