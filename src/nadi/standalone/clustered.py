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
from nadi.config import ServerConfig
from nadi.controller.grpc.crowd import Crowd
from nadi.controller.grpc.server import rpc_server
from nadi.controller.scaling.profile import profile_of
from nadi.defaults import DEFAULT_STORE_PORT
from nadi.engines.engine import LogEngine
from nadi.engines.identity import OwnLog, known_cluster
from nadi.engines.opening import log_name, open_engines, open_log
from nadi.engines.proof import prove_log
from nadi.limits import STOP_DOOR_S
from nadi.observe.health import Component, parent
from nadi.observe.logs import of_process
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.standalone.cache import emptied_cache
from nadi.standalone.figures import ServerFigures
from nadi.standalone.guards import gate_of, tls_of
from nadi.standalone.health import server_health
from nadi.standalone.intake import OwnIntake
from nadi.standalone.ports import listening
from nadi.standalone.server import STOP_GRACE_S, open_rpc
from nadi.stopping import Ending
from nadi.web.door import Door
from nadi.web.own_index import OwnIndex

if TYPE_CHECKING:
    from nadi.controller.rest.endpoint import Api
    from nadi.controller.rest.server import RestServer
    from nadi.web.clients import Clients


class ClusterServer:
    """`async with ClusterServer(ServerConfig(store="s3://bucket/prefix")) as server:` serves until the block ends.

    Raises:
        StoreError: the store can't hold a cluster.
        DataFolderError: another server uses the cache, or it is a data folder.
        InvalidArgumentError, UnavailableError: as for `Server`.
    """

    def __init__(self, config: ServerConfig, runtime: Runtime = REAL) -> None:
        config.check()
        assert config.store is not None
        self._config, self.url = config, config.store
        self._scaling = profile_of(config.scaling)
        self._runtime = runtime
        self.store_address = ("", 0)
        self.controller_uri = ""
        self.rest_uri = self._own_rest = ""

    @property
    def where(self) -> str:
        return self.url

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        config, security = self._config, self._config.security
        security.check_address(config.host, config.advertised_host)
        async with Ending() as parts:
            await self._open_stores(parts)
            addresses = await self._listen(parts)
            index = OwnIndex(self._door(addresses.rpc, self.node.map.endpoint_of, self.node.own_token))
            parts.step("the index of event times", index.close, STOP_DOOR_S)
            self.node.join(addresses, parts, index.bring_up)
            if self._config.rest_port is not None:
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
        engine, registry = await open_engines(self.url, self._runtime, **self._config.store_options)
        parts.step("the object store", engine.close, STOP_DOOR_S, after_all=True)
        self._tls, self.gate = tls_of(self._config.security), gate_of(self._config.security)
        if self.gate is not None:
            parts.callback(self.gate.close)
        cache = await self._open_cache(parts)
        authority = None if self._config.security.tls_authority is None else str(self._config.security.tls_authority)
        settings = NodeSettings(
            containers=self._config.containers,
            open_log=partial(self._own_log, self._config.log, engine, parts) if self._config.log else None,
            gate=self.gate,
            token_lifetime_s=self._config.security.token_lifetime_s,
            security=Security(tls=self._tls is not None, trust_store=authority),
            interval_s=self._config.log_interval_s,
            pace=GCS_PACE if self.url.startswith("gs:") else MembershipPace(),
            scaling=self._scaling,
            version=nadi.__version__,
        )
        stores = Stores(engine, registry, ChunkStore.from_url(self.url, **self._config.store_options))
        self.node = ClusterNode(stores, cache, settings, self._runtime)
        await self.node.open(parts)
        self.id, self.cluster, self.store = self.node.id, self.node.cluster, self.node.store
        of_process(server=self.id)
        self._figures = ServerFigures(self.store, self.gate, self._runtime)

    async def _open_cache(self, parts: Ending) -> Path:
        if self._config.cache is None:
            self.cache = Path(tempfile.mkdtemp(prefix="nadi-cache-"))
            parts.callback(shutil.rmtree, self.cache, ignore_errors=True)
        else:
            lock, self.cache = await self._runtime.in_thread(emptied_cache, Path(self._config.cache))
            parts.step("the cache", partial(self._runtime.in_thread, lock.release), STOP_DOOR_S, after_all=True)
        return self.cache

    async def _own_log(self, url: str, store: LogEngine, parts: Ending) -> OwnLog:
        """Its stream is made for a new cluster alone: in place of one that was lost, servers that run would go on."""
        name = log_name(url, **self._config.log_options)
        known = await known_cluster(store, name, self._runtime)
        engine = await open_log(url, self._runtime, make=known is None, **self._config.log_options)
        parts.step("the log", engine.close, STOP_DOOR_S, after_all=True)
        await prove_log(engine, self._runtime)
        return OwnLog(name, engine)

    async def _listen(self, parts: Ending) -> Addresses:
        context = self._tls.ssl_context() if self._tls is not None else None
        if self._config.rest_port is not None:
            rests = await self._listening_rest(self._config.rest_port, context)
            for rest in rests:
                parts.step("the REST door", rest.stop, STOP_DOOR_S)
            self._own_rest, self.rest_uri = rests[0].uri, rests[-1].uri
        told = self._config.advertised_host
        wanted = DEFAULT_STORE_PORT if self._config.store_port is None else self._config.store_port
        with listening(self._config.host, wanted, "--store-port"):
            address, port = await self.store.listen(self._config.host, wanted, context)
        self.store_address = (told or (self._config.host if context is not None else address), port)
        rpc_address, self.controller_uri = await self._start_rpc(self._config.port, parts)
        self._own_uri = self.controller_uri  # of this process, where others share a port
        if self._config.rest_port is not None:
            await self._open_clients(rpc_address, parts)
        if self._config.shared is not None:
            _, self.controller_uri = await self._start_rpc(self._config.shared.controller, parts, shares_port=True)
        return Addresses(self.store_address, rpc_address, self._own_rest.partition("://")[2])

    async def _listening_rest(self, port: int, context: ssl.SSLContext | None) -> list[RestServer]:
        """At its own port, and then at that which it shares."""
        from nadi.controller.metrics.scrape import OwnMetrics
        from nadi.controller.rest.access import RestAccess
        from nadi.controller.rest.endpoint import Api
        from nadi.controller.rest.server import RestServer
        from nadi.web.clients import Clients
        from nadi.web.site import live_site

        self._clients: Clients = Clients()
        access, site = RestAccess(self.gate), live_site(self._clients)
        own = OwnMetrics(self._figures.samples, self._runtime)
        self._api: Api = Api(self._health, access, own_metrics=own, budget=self.node.store.budget, site=site)
        ports = (
            [port]
            if self._config.shared is None or self._config.shared.rest is None
            else [port, self._config.shared.rest]
        )
        front, rests = self.node.front.rest(self._api), list[RestServer]()
        for one in ports:
            around = front.around_shared if rests else front.around
            rests.append(RestServer(self._api, self._config.host, one, context, around, shares_port=bool(rests)))
            with listening(self._config.host, one, "--rest-port"):
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
        authority = None if self._config.security.tls_authority is None else str(self._config.security.tls_authority)
        return Door(f"{rpc[0]}:{rpc[1]}", endpoint_of, self._tls is not None, authority, token=token)

    async def _start_rpc(self, port: int, parts: Ending, *, shares_port: bool = False) -> tuple[tuple[str, int], str]:
        """Return what it listens at, as clients are told: host and port, and the URI."""
        rpc, tls = rpc_server(shares_port=shares_port), self._tls
        self._figures.rpc.append(self.node.front.add_to(rpc))
        port = open_rpc(rpc, self._config.host, port, tls)
        told = self._config.advertised_host or self._config.host
        await rpc.start()
        crowd = Crowd(port, has_tls=tls is not None, runtime=self._runtime)
        crowd.start()
        parts.callback(crowd.close)
        parts.step("the gRPC door", partial(rpc.stop, STOP_GRACE_S), STOP_DOOR_S)
        return (told, port), f"{'tcp' if tls is None else 'tls'}://{told}:{port}"

    async def stop(self, *, drain: bool = True) -> None:
        """Clean stop, within CLUSTER_DRAIN_S. drain: first hand everything over to the other servers, if there are
        any."""
        if drain and self._config.drains:
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
