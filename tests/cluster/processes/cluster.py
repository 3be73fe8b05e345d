"""Processes of a cluster: its store and servers, and the current owners of its containers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from nadi.cluster import membership_view
from nadi.errors import UnavailableError
from nadi.object_log.opening import open_engines
from nadi.runtime import REAL
from nadi.segmentstore.tier2.records import ContainerRecords
from tests.cluster.processes.patience import PATIENCE_S
from tests.cluster.processes.port_wires import PortWires
from tests.cluster.processes.server import Server
from tests.cluster.processes.stores import FolderStore, S3Store
from tests.cluster.processes.wires import Wire, Wires


class Cluster:
    """Servers at fixed positions, all running; `close` ends those still running.

    wired: whether clients and servers connect through wires, and `balancer` leads clients to an unharmed server.
    """

    def __init__(
        self, folder: Path, servers: int, *, s3: bool = False, containers: int = 4, wired: bool = False
    ) -> None:
        self.folder, self.wires = folder, Wires()
        self.s3: S3Store | None = None
        if s3:
            self.s3 = S3Store(folder / "s3", self.wires)
        self.store = self.s3 or FolderStore(folder / "store")
        self.containers = containers
        self.servers = [Server(number, folder, self.store, containers) for number in range(servers)]
        self.balancer: Wire | None = None
        if wired:
            for server in self.servers:
                server.port_wires = PortWires(self.wires, server.number, (server.port, server.store_port), self._pids)
            self.balancer = self.wires.wire(("127.0.0.1", self.servers[0].port))

    def _pids(self) -> list[int]:
        return [process.pid for server in self.servers if (process := server.process) is not None]

    def start(self) -> None:
        self.servers[0].begin()
        self.servers[0].await_ready()  # the first server creates the containers
        for server in self.servers[1:]:
            server.begin()
        for server in self.servers[1:]:
            server.await_ready()

    @property
    def uri(self) -> str:
        """Return the balancer's URI."""
        assert self.balancer is not None
        host, port = self.balancer.address
        return f"tcp://{host}:{port}"

    def spare(self, *harmed: Server) -> None:
        """Lead the balancer's clients to a server that isn't one of these."""
        if self.balancer is not None:
            unharmed = next(server for server in self.servers if server.is_running and server not in harmed)
            self.balancer.lead_to(("127.0.0.1", unharmed.port))

    def owners(self) -> dict[int, Server]:
        """Return the current owners by container, from the store; containers between two servers are missing. Retried,
        because the store may be slow or lose calls."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return asyncio.run(self._owners())
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    async def _owners(self) -> dict[int, Server]:
        engine, registry = await open_engines(self.store.url, REAL, **self.store.options(-1))
        try:
            members_by_id = {}
            for name in await registry.list(membership_view.FOLDER):
                entry = await registry.get(name)
                member = membership_view.decode(entry.value) if entry is not None else None
                if member is not None:
                    members_by_id[member.id] = next(
                        server for server in self.servers if member.controller.endswith(f":{server.port}")
                    )
            records = ContainerRecords(registry, REAL)
            records_by_number = {number: (await records.read(number)).record for number in range(self.containers)}
            return {
                number: members_by_id[record.owner]
                for number, record in records_by_number.items()
                if not record.released and record.owner in members_by_id
            }
        finally:
            await engine.close()

    def owner(self, container: int) -> Server:
        """Wait until the container has a running owner, and return it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            owner = self.owners().get(container)
            if owner is not None and owner.is_running:
                return owner
            time.sleep(0.1)
        raise AssertionError(f"container {container} has no running owner")

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.store.close()
        self.wires.close()


@contextlib.contextmanager
def running(
    folder: Path, servers: int, *, s3: bool = False, containers: int = 4, wired: bool = False
) -> Iterator[Cluster]:
    cluster = Cluster(folder, servers, s3=s3, containers=containers, wired=wired)
    try:
        cluster.start()
        yield cluster
    except BaseException as error:
        for server in cluster.servers:
            error.add_note(f"log of server {server.number}:\n{server.log_tail(3000)}")
        raise
    finally:
        cluster.close()
