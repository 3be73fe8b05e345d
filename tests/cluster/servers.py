"""Two servers of a cluster in one process, each with a store that has some of the containers, and a proxy; one of them
has the active controller. They share folders as servers share an object store; the test decides who has which
container.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc

from nadi.access.authentication import Gate
from nadi.access.listener import bound_sockets
from nadi.access.tls import ServerTls
from nadi.client.aio import StreamManager
from nadi.client.control.security import Basic, Security
from nadi.cluster.container_map import Address, ContainerMap
from nadi.cluster.proxy.active import ActiveAddresses, ClusterKey
from nadi.cluster.proxy.request_proxy import RequestProxy
from nadi.cluster.proxy.segment_router import SegmentRouter
from nadi.controller.access import ControllerAccess, with_token
from nadi.controller.controller import Controller
from nadi.controller.grpc.server import rpc_server
from nadi.controller.rest.endpoint import Api
from nadi.controller.rest.server import RestServer
from nadi.controller.state.segments import Exchange
from nadi.limits import REST_SOCKET_BYTES
from nadi.observe.health import HealthStatus, leaf
from nadi.segmentstore.container_registry import CONTROLLER_CONTAINER, container_of
from nadi.segmentstore.recovery.storage import LocalStorage
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire.rpc import controller_pb2 as pb
from tests.access.support import Certificate, user

HOST = "127.0.0.1"
CONTAINERS = 4
SECRET = bytes(range(32))
NOBODY_DIES = "cluster_lease_s=60,cluster_dead_s=90"  # limits for servers that may pause for a while


@dataclass(frozen=True)
class Guards:
    """Access control of the servers: a users file, and a certificate."""

    users: Path | None = None
    tls: Certificate | None = None


class LiveServers(ContainerMap):
    """Map in which every server is alive, with addresses given by the test."""

    def __init__(
        self, where: Callable[[str], Address | None], controllers: Callable[[], Sequence[Address]] = list
    ) -> None:
        super().__init__(cast("Any", None), CONTAINERS)
        self._where, self._controllers = where, controllers

    def find(self, segment: str) -> Address | None:
        return self._where(segment)

    async def get_controller_server_list(self, request: pb.ServerRequest) -> pb.ServerResponse:
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port) for host, port in self._controllers()])


class ServerOfCluster:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name, self.cluster = name, cluster
        guards, key = cluster.guards, ClusterKey(SECRET)
        self.tokens = key.token_key(600) if guards.users is not None else None
        self.store = SegmentStore(
            cluster.folder / name,
            CONTAINERS,
            self.tokens,
            chunks=cluster.chunks,
            parts=[cluster.parts(n) for n, owner in cluster.where.items() if owner == name],
            owner_of=lambda number: cluster.store_address(number),
        )
        self.controller: Controller | None = None
        self.gate = Gate(guards.users) if guards.users is not None else None
        self.access = ControllerAccess(self.gate, self.tokens) if self.gate is not None and self.tokens else None
        authority = None if guards.tls is None else str(guards.tls.authority)
        self.security = Security(tls=guards.tls is not None, trust_store=authority)
        self.is_leased = True
        self.proxy = RequestProxy(
            LiveServers(cluster.endpoint_of, lambda: [server.rpc_address for server in cluster.servers]),
            key,
            self.security,
            self.access,
            may_answer=lambda: self.is_leased,
        )
        self.api = Api(lambda: leaf("nadi", HealthStatus.UP, {"server": name}), self.gate)

    async def start(self) -> None:
        tls = self.cluster.guards.tls
        server_tls = None if tls is None else ServerTls(tls.certificate, tls.key)
        await self.store.start()
        self.store_address = await self.store.listen(HOST, 0, None if server_tls is None else server_tls.context)
        self.rpc: grpc.aio.Server = rpc_server()
        self.proxy.add_to(self.rpc)
        if server_tls is None:
            port = self.rpc.add_insecure_port(f"{HOST}:0")
        else:
            port = self.rpc.add_secure_port(f"{HOST}:0", server_tls.grpc_credentials())
        await self.rpc.start()
        self.rpc_address = (HOST, port)
        self.uri = f"{'tcp' if tls is None else 'tls'}://{HOST}:{port}"
        self.rest = RestServer(self.api, server_tls, self.proxy.rest(self.api).around)
        self.rest.start(await bound_sockets(HOST, 0, receive_bytes=REST_SOCKET_BYTES))

    @property
    def addresses(self) -> ActiveAddresses:
        return ActiveAddresses(f"{HOST}:{self.rpc_address[1]}", self.rest.uri.partition("://")[2])

    async def start_controller(self) -> None:
        """Start the controller here."""
        self.router = SegmentRouter(
            self.store,
            f"{HOST}:{self.store_address[1]}",
            lambda segment: self.cluster.store_address(container_of(segment, CONTAINERS)),
            lambda: {self.cluster.store_address(number) for number in range(CONTAINERS)},
            self.security.contexts(),
        )
        exchange: Exchange = self.router
        if self.tokens is not None:
            exchange = with_token(self.router, self.tokens.master())
        self.controller = Controller(
            exchange,
            endpoint_of=self.cluster.endpoint_of,
            rpc_endpoint=self.rpc_address,
        )
        await self.controller.start()
        self.proxy.active(self.controller)

    async def stop_controller(self) -> None:
        self.proxy.active(None)
        if self.controller is not None:
            controller, self.controller = self.controller, None
            await controller.stop()
            self.router.close()

    async def stop(self) -> None:
        await self.stop_controller()
        await self.proxy.close()
        await self.rpc.stop(0)
        await self.rest.stop()
        await self.store.close()
        if self.gate is not None:
            self.gate.close()


class Cluster:
    """Two servers; initially `one` has the even containers, and so the controller."""

    def __init__(self, folder: Path, guards: Guards) -> None:
        self.folder, self.guards = folder, guards
        self.chunks = ChunkStore.in_folder(folder / "tier2")
        self.where = {number: ("one", "two")[number % 2] for number in range(CONTAINERS)}
        self.moves = 0  # number of times the controller moved
        self.servers: list[ServerOfCluster] = []
        self.servers += [ServerOfCluster(self, name) for name in ("one", "two")]

    @property
    def one(self) -> ServerOfCluster:
        return self.servers[0]

    @property
    def two(self) -> ServerOfCluster:
        return self.servers[1]

    @property
    def active(self) -> ServerOfCluster:
        return self.server_of(CONTROLLER_CONTAINER)

    @property
    def other(self) -> ServerOfCluster:
        """Return the server without the active controller."""
        return self.two if self.active is self.one else self.one

    def parts(self, number: int) -> LocalStorage:
        return LocalStorage(number, self.folder / f"container-{number}", self.chunks)

    def server_of(self, number: int) -> ServerOfCluster:
        return next(server for server in self.servers if server.name == self.where[number])

    def store_address(self, number: int) -> str:
        host, port = self.server_of(number).store_address
        return f"{host}:{port}"

    def endpoint_of(self, segment: str) -> tuple[str, int]:
        return self.server_of(container_of(segment, CONTAINERS)).store_address

    async def move(self, number: int, target: ServerOfCluster) -> None:
        await self.server_of(number).store.give_up(number)
        await target.store.take(self.parts(number))
        self.where[number] = target.name

    async def move_controller(self) -> None:
        """Move the controller to the other server; in between there is none."""
        origin, target = self.active, self.other
        for server in self.servers:
            server.proxy.follow(None)
        await origin.stop_controller()
        await self.move(CONTROLLER_CONTAINER, target)
        await target.start_controller()
        self.announce()
        self.moves += 1

    def announce(self) -> None:
        for server in self.servers:
            server.proxy.follow(self.active.addresses)

    def manager(self, server: ServerOfCluster, name: str | None = None) -> StreamManager:
        trusted = self.guards.tls.authority if self.guards.tls is not None else None
        credentials: Basic | None = user(name) if name is not None else None
        return StreamManager(server.uri, credentials=credentials, trust_store=trusted)


@asynccontextmanager
async def cluster(folder: Path, guards: Guards | None = None) -> AsyncIterator[Cluster]:
    made = Cluster(folder, guards or Guards())
    for server in made.servers:
        await server.start()
    await made.active.start_controller()
    made.announce()
    try:
        yield made
    finally:
        for server in made.servers:
            await server.stop()
