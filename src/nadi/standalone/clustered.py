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

import nadi
from nadi.client.control.security import Security
from nadi.cluster.active import Addresses
from nadi.cluster.front import Front
from nadi.cluster.health import cluster_health
from nadi.cluster.keeper import Keeper
from nadi.cluster.mapping import CONTROLLER_CONTAINER, container_of
from nadi.cluster.members import Member
from nadi.cluster.membership import Membership
from nadi.cluster.pace import GCS_PACE, MembershipPace
from nadi.cluster.parts import ClusterParts
from nadi.cluster.reach import Reach
from nadi.cluster.records import Records, RecordWatch, Stored
from nadi.cluster.seat import Seat
from nadi.cluster.tokens import ClusterKey
from nadi.controller.access import ControllerAccess, with_token
from nadi.controller.controller import Controller
from nadi.controller.grpc.server import rpc_server
from nadi.controller.scaling.profile import profile_of
from nadi.defaults import DEFAULT_CONTROLLER_PORT, DEFAULT_HOST, DEFAULT_SCALING, DEFAULT_STORE_PORT
from nadi.engines.identity import open_cluster, signing_key
from nadi.engines.opening import open_engines
from nadi.engines.proof import prove
from nadi.errors import InvalidArgumentError, RequestTimeoutError, UnavailableError
from nadi.limits import CLUSTER_BREAK_S, CLUSTER_CALL_S, CLUSTER_DRAIN_S, CLUSTER_LEAVE_S, CLUSTER_START_S
from nadi.observe.health import Component, parent
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.standalone.cache import emptied_cache
from nadi.standalone.guards import gate_of, tls_of
from nadi.standalone.health import server_health
from nadi.standalone.profiles import profile_named
from nadi.standalone.security import ServerSecurity, is_any_address
from nadi.standalone.server import STOP_GRACE_S, listening

if TYPE_CHECKING:
    from nadi.access.tls import ServerTls
    from nadi.controller.rest.endpoint import Api
    from nadi.controller.rest.server import RestServer

log = logging.getLogger(__name__)
_LOOK_S = 0.05


class ClusterServer:
    """`async with ClusterServer("s3://bucket/prefix") as server:` serves until the block ends.

    url: of the store, `file:///folder` for processes of one machine. options: of it, such as `endpoint`, beside what
    its environment variables say. cache: a folder of this server's own, in which nothing is kept from one start to the
    next; None is a new one that goes with it. profile: see `profiles`; None is the one for the store. containers: of a
    new cluster. The rest is as for `Server`.

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
        runtime: Runtime = REAL,
    ) -> None:
        self.url = url
        self._options, self._cache_given = options or {}, cache
        self._profile = profile_named(profile, url)
        self._host, self._advertised_host = host, advertised_host
        self._store_port, self._controller_port, self._rest_port = store_port, controller_port, rest_port
        self._containers = containers
        self._security = security or ServerSecurity()
        self._scaling = profile_of(scaling)
        self._runtime = runtime
        self.store_address = ("", 0)
        self.controller_uri = ""
        self.rest_uri = ""
        self.id = runtime.unique()[:16]

    @property
    def where(self) -> str:
        return self.url

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        security = self._security
        security.check_address(self._host)
        if security.signing_key_file is not None:
            raise InvalidArgumentError("a cluster has a signing key of its own in its store: leave out --signing-key")
        if self._advertised_host is None and is_any_address(self._host):
            raise InvalidArgumentError("clients can't connect to every address: give one of them as --advertised-host")
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
        self._engine, self._registry = await open_engines(self.url, self._runtime, **self._options)
        parts.push_async_callback(self._engine.close)
        await prove(self._engine, self._registry, self._runtime)
        self.cluster = await open_cluster(self._engine, self._containers, self._runtime)
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
        self._watch = RecordWatch(self._registry, self._records, self.cluster.containers, self._runtime)
        self.store = SegmentStore(
            self.cache,
            self.cluster.containers,
            self._tokens,
            self._runtime,
            self._chunks,
            parts=(),
            owner_of=self._address_of,
            mapping=container_of,
            on_lost=lambda number: self.keeper.lost(number),
        )
        parts.push_async_callback(self.store.close)
        await self.store.start()

    async def _listen(self, parts: AsyncExitStack) -> None:
        tls = tls_of(self._security)
        context = tls.ssl_context() if tls is not None else None
        authority = None if self._security.tls_authority is None else str(self._security.tls_authority)
        peers = Security(tls=tls is not None, trust_store=authority)
        self._peer_tls = peers.ssl_context()
        access = None if self.gate is None or self._tokens is None else ControllerAccess(self.gate, self._tokens)
        self.front = Front(self._endpoint_of, self._controllers, self._key, peers, access)
        parts.push_async_callback(self.front.close)
        if self._rest_port is not None:
            rest = await self._listening_rest(self._rest_port, context)
            parts.push_async_callback(rest.stop)
            self.rest_uri = rest.uri
        told = self._advertised_host
        with listening(self._host, self._store_port):
            address, port = await self.store.listen(self._host, self._store_port, context)
        self.store_address = (told or (self._host if context is not None else address), port)
        self._rpc = rpc_server()
        self.front.add_to(self._rpc)
        await self._start_rpc(tls)
        parts.push_async_callback(self._rpc.stop, STOP_GRACE_S)

    async def _listening_rest(self, port: int, context: ssl.SSLContext | None) -> RestServer:
        from nadi.controller.rest.access import RestAccess
        from nadi.controller.rest.endpoint import Api
        from nadi.controller.rest.server import RestServer

        self._api: Api = Api(self._health, RestAccess(self.gate), budget=self.store.budget)
        rest = RestServer(self._api, self._host, port, context, self.front.rest(self._api))
        with listening(self._host, port):
            await rest.start()
        return rest

    async def _start_rpc(self, tls: ServerTls | None) -> None:
        door = f"{self._host}:{self._controller_port}"
        with listening(self._host, self._controller_port):
            if tls is None:
                port = self._rpc.add_insecure_port(door)
            else:
                port = self._rpc.add_secure_port(door, tls.grpc_credentials())
            if port == 0:
                raise RuntimeError("the address is in use")
        told = self._advertised_host or self._host
        self._rpc_endpoint = (told, port)
        await self._rpc.start()
        self.controller_uri = f"{'tcp' if tls is None else 'tls'}://{told}:{port}"

    def _join(self, parts: AsyncExitStack) -> None:
        me = Member(
            id=self.id,
            store=f"{self.store_address[0]}:{self.store_address[1]}",
            controller=f"{self._rpc_endpoint[0]}:{self._rpc_endpoint[1]}",
            rest=self.rest_uri.partition("://")[2],
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
        self.membership.start()
        self.keeper.start()

    async def _settled(self) -> None:
        """Wait until the cluster has a controller that this server reaches."""
        try:
            async with asyncio.timeout(CLUSTER_START_S):
                while self.seat.controller is None and not self._controller_elsewhere():
                    await self._runtime.sleep(_LOOK_S)
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"no server of the cluster in {self.url} has an active controller after {CLUSTER_START_S:.0f} s: see "
                "the messages above, and those of the other servers"
            ) from error

    async def stop(self, *, drain: bool = True) -> None:
        """Clean stop, within CLUSTER_DRAIN_S. drain: first hand everything over to the other servers, if there are
        any."""
        if drain:
            await self.drain(CLUSTER_DRAIN_S - CLUSTER_LEAVE_S - CLUSTER_BREAK_S)
        await self._parts.aclose()

    async def drain(self, limit_s: float) -> None:
        """Hand all containers over to the other servers; return when none is here, or it has taken so long."""
        self.membership.drain()
        self.keeper.wake()
        others = [peer for peer in self.membership.members.values() if peer.id != self.id and peer.is_alive]
        if any(peer.member is not None and not peer.member.is_draining for peer in others):
            try:
                async with asyncio.timeout(limit_s):
                    await self.keeper.drained()
            except TimeoutError:
                log.warning("not all containers could be handed over in time: others take over what is left")

    async def _leave(self) -> None:
        """What waits for a store that doesn't answer isn't waited for: the others take over from what is stored."""
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
            self._engine,
            self._records,
            self._chunks,
            self._runtime,
            self._profile.interval_s,
            self.membership.lease_is_valid,
        )

    def _make_controller(self) -> tuple[Controller, Callable[[], None]]:
        own = f"{self.store_address[0]}:{self.store_address[1]}"
        reach = Reach(
            self.store,
            own,
            lambda segment: self._address_of(container_of(segment, self.cluster.containers)),
            self._stores,
            self._peer_tls,
        )
        exchange = reach if self._tokens is None else with_token(reach, self._tokens.master())
        controller = Controller(
            exchange,
            endpoint_of=self._endpoint_of,
            rpc_endpoint=self._rpc_endpoint,
            scaling=self._scaling,
        )
        return controller, reach.close

    def _address_of(self, number: int) -> str:
        """The address of the store that has a container, "" if it isn't known."""
        owner = self._watch.owner(number)
        peer = self.membership.members.get(owner)
        return peer.member.store if peer is not None and peer.is_alive and peer.member is not None else ""

    def _endpoint_of(self, segment: str) -> tuple[str, int]:
        if not self.membership.lease_is_valid():
            raise UnavailableError("this server can't reach the cluster's store: try again, or ask another server")
        number = container_of(segment, self.cluster.containers)
        address = self._address_of(number)
        if not address:
            raise UnavailableError(f"container {number} is between two servers: try again")
        host, _, port = address.rpartition(":")
        return host.strip("[]"), int(port)

    def _controllers(self) -> list[tuple[str, int]]:
        members = [peer.member for peer in self.membership.members.values() if peer.is_alive and peer.member]
        return [(host.strip("[]"), int(port)) for host, _, port in (one.controller.rpartition(":") for one in members)]

    def _stores(self) -> set[str]:
        found = {self._address_of(number) for number in range(self.cluster.containers)}
        return found - {""}

    def _controller_elsewhere(self) -> Addresses | None:
        owner = self._watch.owner(CONTROLLER_CONTAINER)
        peer = self.membership.members.get(owner)
        if owner == self.id or peer is None or not peer.is_alive or peer.member is None:
            return None
        return Addresses(peer.member.controller, peer.member.rest)

    def _follow(self) -> None:
        self.front.follow(self._controller_elsewhere())

    def _health(self) -> Component:
        elsewhere = self._controller_elsewhere()
        told = elsewhere.rpc if elsewhere is not None else ""
        health = server_health(self.store, self.seat.controller, self.controller_uri, told)
        return parent(health.name, (*health.children.values(), cluster_health(self.membership, self._watch, self.id)))
