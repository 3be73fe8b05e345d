"""Server of a cluster: `cluster.node` over the store at a URL. Its files on this machine are only a cache."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import nadi
from nadi.client.control.security import ClientCertificate, Security
from nadi.cluster.membership_view import GCS_PACE, MembershipPace
from nadi.cluster.node import ClusterNode, NodeSettings, ServerAddresses, Stores
from nadi.config import ServerConfig
from nadi.controller.scaling.decisions import profile_of
from nadi.errors import DataFolderError
from nadi.limits import PAGE_ANSWER_S, STOP_PORT_S
from nadi.loopback_clients import OwnClients, ServerPorts
from nadi.model.quotas import QuotaShare, QuotaUse
from nadi.object_log.engine import LogEngine
from nadi.object_log.identity import OwnLog, known_cluster
from nadi.object_log.opening import log_name, open_engines, open_log
from nadi.object_log.store_probe import prove
from nadi.observe.health import Component, parent
from nadi.observe.logs import add_process_fields
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.data_dir import FolderLock, find_store
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.shutdown import ShutdownSteps
from nadi.standalone.assembly import ServerAssembly, own_certificate
from nadi.standalone.health import server_health
from nadi.wire.rpc import quotas_pb2

_COPIES = "copies"


class ClusterServer(ServerAssembly):
    """Server to use as `async with ClusterServer(ServerConfig(store="s3://bucket/prefix")) as server:`.

    StoreError: the store can't hold a cluster. DataFolderError: another server uses the cache, or it is a data folder.
    InvalidArgumentError, UnavailableError: as for `Server`.
    """

    def __init__(self, config: ServerConfig, runtime: Runtime = REAL) -> None:
        super().__init__(config, runtime)
        assert config.store is not None
        self.where = self._url = config.store
        self._scaling = profile_of(config.scaling)
        self._authority = None if config.security.tls_ca is None else str(config.security.tls_ca)

    async def start(self) -> None:
        await super().start()
        try:
            await self.node.settled(self._url)
            await self._listen_kafka(self._parts, self._index)
        except BaseException:
            await self.stop(drain=False)
            raise

    async def stop(self, *, drain: bool = True) -> None:
        """Stop cleanly, within CLUSTER_DRAIN_S. drain: first hand over all containers to the other servers, if any."""
        if drain and self._config.drains:
            await self.node.drain()
        await super().stop()

    async def _assemble(self, parts: ShutdownSteps) -> None:
        await self._open_node(parts)
        if self.gate is not None:
            self.gate.share_own(self.node.own_token)
        proxy = self.node.proxy
        await self._listen_rest(parts)
        if self._serving is not None:
            self._serving.cancel()
            self._serve_rest(proxy.rest)
        await self._listen_store()
        await self._listen_rpc(parts, self._config.port, proxy.add_to)
        if self._config.shared is not None:
            await self._listen_rpc(parts, self._config.shared.controller, proxy.add_to, shares_port=True)
        rpc = f"{self._rpc_address[0]}:{self._rpc_address[1]}"
        ports = partial(  # like any client
            ServerPorts,
            rpc,
            tls=self._tls is not None,
            trusted=self._authority,
            certificate=own_certificate(self._config.security),
        )
        self._index = OwnClients(PAGE_ANSWER_S, ports(endpoint_of=self.node.map.endpoint_of, token=self.node.own_token))
        rest = self._own_rest.partition("://")[2]
        self.node.join(ServerAddresses(self.store_address, self._rpc_address, rest), parts, self._index.index_times)
        self._more_samples = self.node.samples
        if self._api is not None:
            self._api.cluster = self.node.operator
        self._open_own_clients(parts, ports(), self._index)
        self._keep_audit(parts, self._index)
        self._keep_quotas(parts, self.id, self._share)

    async def _share(self, server: str, uses: Sequence[QuotaUse]) -> Sequence[QuotaShare]:
        request = quotas_pb2.QuotaUses(server=server, uses=msgspec.json.encode(uses))
        reply: Any = await self.node.proxy.ask(
            "shareQuotas", request, "" if self.gate is None else self.gate.own_authorization
        )
        return msgspec.json.decode(reply.records, type=list[QuotaShare])

    async def _open_node(self, parts: ShutdownSteps) -> None:
        """Open the object store, and this server's segment store over it."""
        config = self._config
        engine, registry = await open_engines(self._url, self._runtime, **config.store_options)
        parts.step("the object store", engine.close, STOP_PORT_S, after_all=True)
        if config.cache is None:
            self.cache = Path(tempfile.mkdtemp(prefix="nadi-cache-"))
            parts.callback(shutil.rmtree, self.cache, ignore_errors=True)
        else:
            lock, self.cache = await self._runtime.in_thread(emptied_cache, Path(config.cache))
            parts.step("the cache", partial(self._runtime.in_thread, lock.release), STOP_PORT_S, after_all=True)
        certificate = own_certificate(config.security)
        login = None if certificate is None else ClientCertificate(*certificate)
        settings = NodeSettings(
            containers=config.containers,
            open_log=partial(self._open_log, config.log, engine, parts) if config.log else None,
            gate=self.gate,
            token_lifetime_s=config.security.token_lifetime_s,
            security=Security(login, tls=self._tls is not None, trust_store=self._authority),
            interval_s=config.log_interval_s,
            pace=GCS_PACE if self._url.startswith("gs:") else MembershipPace(),
            scaling=self._scaling,
            audit_retention_ms=config.security.audit_retention_ms,
            version=nadi.__version__,
            encryption=config.security.encryption_key,
        )
        stores = Stores(engine, registry, ChunkStore.from_url(self._url, **config.store_options))
        self.node = ClusterNode(stores, self.cache, settings, self._runtime)
        await self.node.open(parts)
        self.id, self.cluster, self.store = self.node.id, self.node.cluster, self.node.store
        add_process_fields(server=self.id)

    async def _open_log(self, url: str, store: LogEngine, parts: ShutdownSteps) -> OwnLog:
        """Open the log. Its stream is created only for a new cluster: recreating a lost one would let running servers
        go on."""
        options = self._config.log_options
        name = log_name(url, **options)
        known = await known_cluster(store, name, self._runtime)
        engine = await open_log(url, self._runtime, make=known is None, **options)
        parts.step("the log", engine.close, STOP_PORT_S, after_all=True)
        await prove(engine, None, self._runtime)
        return OwnLog(name, engine)

    def _has_controller(self) -> bool:
        return self.node.leadership.controller is not None

    def _health(self) -> Component:
        node = self.node
        controller = node.leadership.controller if node.has_joined else None
        health = server_health(self.store, controller, self.controller_uri, node.controller_elsewhere())
        return parent(health.name, (*health.children.values(), node.health()))


def emptied_cache(folder: Path) -> tuple[FolderLock, Path]:
    """Lock a cache folder and delete the copies in it, which may be stale; return the lock, and the folder for new
    copies.

    Blocking. DataFolderLockedError: another server uses it. DataFolderError: it is a data folder; nothing is changed.
    """
    if find_store(folder).store is not None:
        raise DataFolderError(f"{folder} is a data folder and can't be a cache: choose another folder for the cache")
    lock = FolderLock(folder)
    try:
        shutil.rmtree(folder / _COPIES, ignore_errors=True)
    except BaseException:
        lock.release()
        raise
    return lock, folder / _COPIES
