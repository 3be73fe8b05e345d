"""One server of a cluster: a segment store with the containers that are its share, the controller if container 0 is
among them, and a door that answers for the whole cluster. What it keeps on this machine is a copy that nobody needs.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

import nadi
from nadi.client.control.security import Security
from nadi.cluster.doors.front import Front
from nadi.cluster.doors.reach import Reach
from nadi.cluster.doors.tokens import ClusterKey
from nadi.cluster.health import cluster_health
from nadi.cluster.keeper import Keeper
from nadi.cluster.map import Map
from nadi.cluster.mapping import CONTROLLER_CONTAINER, container_of
from nadi.cluster.operating.figures import CountedEngine, Figures, families
from nadi.cluster.operating.janitor import Janitor, clean_daily
from nadi.cluster.operating.operator import Operator
from nadi.cluster.parts import ClusterParts
from nadi.cluster.records import Records, RecordWatch, Stored, check_stays
from nadi.cluster.seat import Seat
from nadi.cluster.servers.members import Member
from nadi.cluster.servers.membership import Membership
from nadi.cluster.servers.pace import GCS_PACE, MembershipPace
from nadi.controller.access import ControllerAccess, with_token
from nadi.controller.controller import Controller
from nadi.controller.grpc.server import rpc_server
from nadi.controller.scaling.profile import profile_of
from nadi.defaults import DEFAULT_CONTROLLER_PORT, DEFAULT_HOST, DEFAULT_SCALING, DEFAULT_STORE_PORT
from nadi.engines.identity import OwnLog, known_cluster, open_cluster, refuse_strangers, signing_key
from nadi.engines.opening import log_name, open_engines, open_log
from nadi.engines.proof import prove, prove_log
from nadi.errors import InvalidArgumentError, RequestTimeoutError
from nadi.limits import CLUSTER_BREAK_S, CLUSTER_CALL_S, CLUSTER_DRAIN_S, CLUSTER_LEAVE_S, CLUSTER_START_S
from nadi.observe.health import Component, parent
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.standalone.cache import emptied_cache
from nadi.standalone.embedded import SharedPorts
from nadi.standalone.guards import gate_of, tls_of
from nadi.standalone.health import server_health
from nadi.standalone.profiles import profile_named
from nadi.standalone.security import ServerSecurity
from nadi.standalone.server import STOP_GRACE_S, listening, open_rpc

if TYPE_CHECKING:
    from nadi.access.tls import ServerTls
    from nadi.controller.rest.endpoint import Api
    from nadi.controller.rest.server import RestServer

log = logging.getLogger(__name__)
_LOOK_S = 0.05


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
        self.id = runtime.unique()[:16]

    @property
    def where(self) -> str:
        return self.url

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        security = self._security
        security.check_address(self._host, self._advertised_host)
        if security.signing_key_file is not None:
            raise InvalidArgumentError("a cluster has a signing key of its own in its store: leave out --signing-key")
        async with AsyncExitStack() as parts:
            await self._open_store(parts)
            await self._listen(parts)
            self._join(parts)
            parts.push_async_callback(self._leave)
            self._parts = parts.pop_all()
        try:
            await self._settled()
        except BaseException:
            await self.stop(drain=False)
            raise

    async def _open_store(self, parts: AsyncExitStack) -> None:
        """What the object store has, and this server's segment store over it."""
        engine, self._registry = await open_engines(self.url, self._runtime, **self._options)
        parts.push_async_callback(engine.close)
        await refuse_strangers(engine, self._runtime)  # before anything is written there
        await prove(engine, self._registry, self._runtime)
        self._engine = engine
        own_log = await self._own_log(parts) if self._log_url else None
        self._log = CountedEngine(own_log.engine if own_log is not None else engine, self._runtime)
        self.cluster = await open_cluster(engine, self._containers, self._runtime, own_log)
        self._key = ClusterKey(await signing_key(self._engine, self._runtime))
        self.gate = gate_of(self._security)
        if self.gate is not None:
            parts.callback(self.gate.close)
        self._tokens = self._key.token_key(self._security.token_lifetime_s) if self.gate is not None else None
        self._chunks = ChunkStore.from_url(self.url, **self._options)
        if self._cache_given is None:
            self.cache = Path(tempfile.mkdtemp(prefix="nadi-cache-"))
            parts.callback(shutil.rmtree, self.cache, ignore_errors=True)
        else:
            lock, self.cache = await self._runtime.in_thread(emptied_cache, Path(self._cache_given))
            parts.callback(lock.release)
        self._records = Records(self._registry, self._runtime)
        check_stays((await self._records.read(CONTROLLER_CONTAINER)).record)
        self._watch = RecordWatch(self._registry, self._records, self.cluster.containers, self._runtime)
        self._map = Map(self._watch, self.cluster.containers)
        self.store = SegmentStore(
            self.cache,
            self.cluster.containers,
            self._tokens,
            self._runtime,
            self._chunks,
            parts=(),
            owner_of=self._map.store_of,
            mapping=container_of,
            on_lost=lambda number: self.keeper.lost(number),
        )
        parts.push_async_callback(self.store.close)
        await self.store.start()

    async def _own_log(self, parts: AsyncExitStack) -> OwnLog:
        """Its stream is made for a new cluster alone: in place of one that was lost, servers that run would go on."""
        name = log_name(self._log_url, **self._log_options)
        known = await known_cluster(self._engine, name, self._runtime)
        engine = await open_log(self._log_url, self._runtime, make=known is None, **self._log_options)
        parts.push_async_callback(engine.close)
        await prove_log(engine, self._runtime)
        return OwnLog(name, engine)

    async def _listen(self, parts: AsyncExitStack) -> None:
        tls = tls_of(self._security)
        context = tls.ssl_context() if tls is not None else None
        authority = None if self._security.tls_authority is None else str(self._security.tls_authority)
        peers = Security(tls=tls is not None, trust_store=authority)
        self._peer_tls = peers.ssl_context()
        access = None if self.gate is None or self._tokens is None else ControllerAccess(self.gate, self._tokens)
        self.front = Front(self._map.endpoint_of, self._map.controllers, self._key, peers, access)
        parts.push_async_callback(self.front.close)
        if self._rest_port is not None:
            rests = await self._listening_rest(self._rest_port, context)
            for rest in rests:
                parts.push_async_callback(rest.stop)
            self._own_rest, self.rest_uri = rests[0].uri, rests[-1].uri
        told = self._advertised_host
        with listening(self._host, self._store_port):
            address, port = await self.store.listen(self._host, self._store_port, context)
        self.store_address = (told or (self._host if context is not None else address), port)
        self._rpc = rpc_server()
        self.front.add_to(self._rpc)
        self._rpc_endpoint, self.controller_uri = await self._start_rpc(self._rpc, self._controller_port, tls)
        parts.push_async_callback(self._rpc.stop, STOP_GRACE_S)
        if self._shared is not None:
            rpc = rpc_server(shares_port=True)
            self.front.add_to(rpc)
            _, self.controller_uri = await self._start_rpc(rpc, self._shared.controller, tls)
            parts.push_async_callback(rpc.stop, STOP_GRACE_S)

    async def _listening_rest(self, port: int, context: ssl.SSLContext | None) -> list[RestServer]:
        """At its own port, and then at that which it shares."""
        from nadi.controller.rest.access import RestAccess
        from nadi.controller.rest.endpoint import Api
        from nadi.controller.rest.server import RestServer

        self._api: Api = Api(self._health, RestAccess(self.gate), budget=self.store.budget)
        ports = [port] if self._shared is None or self._shared.rest is None else [port, self._shared.rest]
        around, rests = self.front.rest(self._api), list[RestServer]()
        for one in ports:
            rests.append(RestServer(self._api, self._host, one, context, around, shares_port=bool(rests)))
            with listening(self._host, one):
                await rests[-1].start()
        return rests

    async def _start_rpc(self, rpc: grpc.aio.Server, port: int, tls: ServerTls | None) -> tuple[tuple[str, int], str]:
        """Return what it listens at, as clients are told: host and port, and the URI."""
        port = open_rpc(rpc, self._host, port, tls)
        told = self._advertised_host or self._host
        await rpc.start()
        return (told, port), f"{'tcp' if tls is None else 'tls'}://{told}:{port}"

    def _join(self, parts: AsyncExitStack) -> None:
        me = Member(
            id=self.id,
            store=f"{self.store_address[0]}:{self.store_address[1]}",
            controller=f"{self._rpc_endpoint[0]}:{self._rpc_endpoint[1]}",
            rest=self._own_rest.partition("://")[2],
            version=nadi.__version__,
            started_ms=self._runtime.now_ms(),
        )
        pace = GCS_PACE if self.url.startswith("gs:") else MembershipPace()
        self.membership = Membership(
            self._registry,
            me,
            runtime=self._runtime,
            pace=pace,
            load=lambda: self.keeper.load(),
            on_change=lambda: self.keeper.wake(),
        )
        self._map.membership = self.membership
        self.seat = Seat(self._make_controller, self.front.active, self._runtime)
        self.keeper = Keeper(
            self.id,
            self.store,
            self.membership,
            self._records,
            self._watch,
            self._parts_of,
            self.cluster.containers,
            self._runtime,
            on_taken=self.seat.taken,
            on_leaving=self.seat.leaving,
            on_looked=self._follow,
        )
        operator = Operator(self.cluster, self.id, self.membership, self._watch, self.keeper, self.store)
        if self._rest_port is not None:
            self._api.cluster = operator
            self._api.own_metrics = lambda: families(self._figures())
        janitor = Janitor(
            self._engine, self._registry, self._chunks, self.cluster.containers, self._runtime, goes_on=self._cleans
        )
        self._janitor = asyncio.create_task(clean_daily(janitor, self._runtime, self._cleans), name="janitor")
        self.membership.start()
        self.keeper.start()

    async def _settled(self) -> None:
        """Wait until the cluster has a controller that this server reaches."""
        try:
            async with asyncio.timeout(CLUSTER_START_S):
                while self.seat.controller is None and not self._map.controller(self.id):
                    await self._runtime.sleep(_LOOK_S)
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"no server of the cluster in {self.url} has an active controller after {CLUSTER_START_S:.0f} s: see "
                "the messages above, and those of the other servers"
            ) from error

    async def stop(self, *, drain: bool = True) -> None:
        """Clean stop, within CLUSTER_DRAIN_S. drain: first hand everything over to the other servers, if there are
        any."""
        if drain and self._drains:
            await self.drain(CLUSTER_DRAIN_S - CLUSTER_LEAVE_S - CLUSTER_BREAK_S)
        await self._parts.aclose()

    async def drain(self, limit_s: float = CLUSTER_DRAIN_S) -> None:
        """Hand all containers over to the other servers; return when none is here, nobody takes any, or it has taken so
        long."""
        self.membership.drain()
        self.keeper.wake()
        try:
            async with asyncio.timeout(limit_s):
                await self.keeper.drained()
        except TimeoutError:
            log.warning("not all containers could be handed over in time: others take over what is left")

    def _figures(self) -> Figures:
        return Figures(
            len(self.store.containers),
            [peer.is_alive for peer in self.membership.members.values()],
            self.membership.lease_is_valid(),
            self.membership.term,
            self.seat.controller is not None,
            self.keeper.moves,
            self._log,
        )

    def _cleans(self) -> bool:
        """Whether this server is the one that cleans the store."""
        return self._watch.owner(CONTROLLER_CONTAINER) == self.id and self.membership.lease_is_valid()

    async def _leave(self) -> None:
        """What waits for a store that doesn't answer isn't waited for: the others take over from what is stored."""
        self._janitor.cancel()
        await asyncio.wait([self._janitor])
        try:
            async with asyncio.timeout(CLUSTER_LEAVE_S if self.membership.lease_is_valid() else CLUSTER_CALL_S):
                await self.keeper.stop()
                await self.seat.stop()
                await self.keeper.give_back()
                await self.membership.leave()
        except TimeoutError:
            log.warning("the containers that are still here can't be closed in time: others take them over as they are")
            self.store.forsake()

    async def __aenter__(self) -> ClusterServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- what its parts ask ----------------------------------------------------------------------------

    def _parts_of(self, number: int, seen: Stored) -> ClusterParts:
        return ClusterParts(
            number,
            self.cache / f"container-{number}",
            self.id,
            seen,
            self._log,
            self._records,
            self._chunks,
            self._runtime,
            self._profile.interval_s,
            lambda: self.keeper.may_answer(number),
        )

    def _make_controller(self) -> tuple[Controller, Callable[[], None]]:
        own = f"{self.store_address[0]}:{self.store_address[1]}"
        reach = Reach(self.store, own, self._map.store_of_segment, self._map.stores, self._peer_tls)
        exchange = reach if self._tokens is None else with_token(reach, self._tokens.master())
        controller = Controller(
            exchange,
            endpoint_of=self._map.endpoint_of,
            rpc_endpoint=self._rpc_endpoint,
            scaling=self._scaling,
        )
        return controller, reach.close

    def _follow(self) -> None:
        self.front.follow(self._map.controller(self.id))

    def _health(self) -> Component:
        elsewhere = self._map.controller(self.id)
        told = elsewhere.rpc if elsewhere is not None else ""
        health = server_health(self.store, self.seat.controller, self.controller_uri, told)
        return parent(health.name, (*health.children.values(), cluster_health(self.membership, self._watch, self.id)))
