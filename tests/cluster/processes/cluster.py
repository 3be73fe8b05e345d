"""The processes of a cluster: its store, its servers, and who has what."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from nadi.cluster import membership_view as members
from nadi.errors import UnavailableError
from nadi.object_log.opening import open_engines
from nadi.runtime import REAL
from nadi.segmentstore.tier2.records import ContainerRecords
from tests.cluster.processes.doors import Doors
from tests.cluster.processes.patience import PATIENCE_S
from tests.cluster.processes.server import Server
from tests.cluster.processes.stores import FolderStore, S3Store
from tests.cluster.processes.wires import Wire, Wires


class Cluster:
    """`servers` in their places, all running; `close` ends what still runs.

    doors: whether there are wires to each server, and `balancer`, at which clients are led to one that nothing befalls.
    """

    def __init__(
        self, folder: Path, servers: int, *, s3: bool = False, containers: int = 4, doors: bool = False
    ) -> None:
        self.folder, self.wires = folder, Wires()
        self.s3: S3Store | None = None
        if s3:
            self.s3 = S3Store(folder / "s3", self.wires)
        self.store = self.s3 or FolderStore(folder / "store")
        self.containers = containers
        self.servers = [Server(number, folder, self.store, containers) for number in range(servers)]
        self.balancer: Wire | None = None
        if doors:
            for server in self.servers:
                server.doors = Doors(self.wires, server.number, (server.port, server.store_port), self._pids)
            self.balancer = self.wires.wire(("127.0.0.1", self.servers[0].port))

    def _pids(self) -> list[int]:
        return [process.pid for server in self.servers if (process := server.process) is not None]

    def start(self) -> None:
        self.servers[0].begin()
        self.servers[0].await_ready()  # the first decides how many containers there are
        for server in self.servers[1:]:
            server.begin()
        for server in self.servers[1:]:
            server.await_ready()

    @property
    def uri(self) -> str:
        """Of the balancer."""
        assert self.balancer is not None
        host, port = self.balancer.address
        return f"tcp://{host}:{port}"

    def spare(self, *harmed: Server) -> None:
        """Lead clients of the balancer elsewhere than to these."""
        if self.balancer is not None:
            left = next(server for server in self.servers if server.is_running and server not in harmed)
            self.balancer.lead_to(("127.0.0.1", left.port))

    def owners(self) -> dict[int, Server]:
        """Who has which container now, as the store says, which is asked again where it is slow and loses calls; those
        that are between two servers are missing."""
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
            places = {}
            for name in await registry.list(members.FOLDER):
                entry = await registry.get(name)
                member = members.decode(entry.value) if entry is not None else None
                if member is not None:
                    places[member.id] = next(one for one in self.servers if member.controller.endswith(f":{one.port}"))
            records = ContainerRecords(registry, REAL)
            found = {number: (await records.read(number)).record for number in range(self.containers)}
            return {
                number: places[record.owner]
                for number, record in found.items()
                if not record.released and record.owner in places
            }
        finally:
            await engine.close()

    def owner(self, container: int) -> Server:
        """Who has it; waits until it is somebody's who runs."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = self.owners().get(container)
            if found is not None and found.is_running:
                return found
            time.sleep(0.1)
        raise AssertionError(f"nobody has container {container}")

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.store.close()
        self.wires.close()


@contextlib.contextmanager
def running(
    folder: Path, servers: int, *, s3: bool = False, containers: int = 4, doors: bool = False
) -> Iterator[Cluster]:
    cluster = Cluster(folder, servers, s3=s3, containers=containers, doors=doors)
    try:
        cluster.start()
        yield cluster
    except BaseException as error:
        for server in cluster.servers:
            error.add_note(f"server {server.number} said:\n{server.said(3000)}")
        raise
    finally:
        cluster.close()
