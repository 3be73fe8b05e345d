"""Server of a data folder: a segment store and a controller over it, in one event loop.

The controller accesses segments through the store's in-process interface, with the same commands that other clients
send over the wire.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nadi.access.tokens import TokenKey
from nadi.config import ServerConfig, ServerSecurity, is_any_address
from nadi.controller.access import ControllerAccess, with_token
from nadi.controller.controller import Controller
from nadi.controller.grpc.server import add_controller
from nadi.controller.scaling.decisions import profile_of
from nadi.defaults import DEFAULT_HOST
from nadi.errors import StorageFullError
from nadi.limits import LOG_MAX_BYTES, PAGE_ANSWER_S, STOP_PORT_S, STOP_STORE_S
from nadi.loopback_clients import OwnClients, ServerPorts
from nadi.naming import check_path
from nadi.observe.cluster import WriteFreezeReport
from nadi.observe.health import Component
from nadi.segmentstore.data_dir import Tier2
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.write_freeze import WriteFreeze, abandon_folder, is_abandoned
from nadi.shutdown import ShutdownSteps
from nadi.standalone.assembly import ServerAssembly, own_certificate
from nadi.standalone.health import server_health

if TYPE_CHECKING:
    import grpc

    from nadi.access.fair_shares import Shares
    from nadi.controller.rest.endpoint import Api


class Server(ServerAssembly):
    """Server to use as `async with Server(ServerConfig(data=folder)) as server:`.

    DataFolderError, StoreError: the folder, or tier 2, can't be used. UnavailableError: a port is taken.
    InvalidArgumentError: the configuration is invalid.
    """

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config)
        self.folder = config.folder
        self.where = str(self.folder)
        self._scaling = profile_of(config.scaling)
        self._answering: Controller | None = None  # set once everything has started

    async def _assemble(self, parts: ShutdownSteps) -> None:
        config = self._config
        tokens = _token_key_of(config.security, self.folder)
        tier2 = None if config.tier2 is None else Tier2(config.tier2, config.tier2_options)
        self.store = SegmentStore(
            self.folder,
            config.containers,
            tokens,
            tier2=tier2,
            log_max_bytes=config.log_max_bytes or LOG_MAX_BYTES,
            encryption=config.security.encryption_key,
        )
        parts.step("the data folder", self.store.close, STOP_STORE_S)
        await self._listen_rest(parts)
        await self.store.start()
        self._listening = await self._listen_store()
        exchange = self.store.exchange if tokens is None else with_token(self.store.exchange, tokens.master())
        self.controller = Controller(
            exchange,
            endpoint_of=lambda segment: self.store_address,
            rpc_endpoint=(self.store_address[0], config.port),
            scaling=self._scaling,
            audit_retention_ms=config.security.audit_retention_ms,
        )
        parts.step("the controller", self.controller.stop, STOP_PORT_S)
        try:
            await self.controller.start()
        except StorageFullError as error:
            raise StorageFullError(
                f"the disk of the data folder {self.folder} is full ({error}): free space on it, then start again"
            ) from error
        access = None if self.gate is None or tokens is None else ControllerAccess(self.gate, tokens)

        def add(rpc: grpc.aio.Server) -> Shares:
            self.controller.rpc_endpoint = self._rpc_address
            self.controller.rest_port = urlsplit(self.rest_uri).port or 0
            return add_controller(rpc, self.controller, access)

        await self._listen_rpc(parts, config.port, add)
        parts.callback(self.controller.end_waits)  # before the gRPC port closes, which waits for the calls under way
        parts.step("the REST port", self._stop_rest, STOP_PORT_S)  # before the controller, for requests under way
        own_token = self.store.access.own_token if tokens is None else tokens.master()
        index = OwnClients(PAGE_ANSWER_S, self._own_ports(own_token))
        self.controller.retention.index_times = index.index_times
        self._open_own_clients(parts, self._own_ports(), index)
        self._keep_audit(parts, index)
        self._keep_quotas(parts, self.store.id, self.controller.quotas.share)
        await self._listen_kafka(parts, index)
        leaving = _Leaving(self.folder, self.store)
        parts.step("a migration's hold", leaving.stop, STOP_PORT_S)
        self._answering = self.controller

        def use(api: Api) -> None:
            api.controller, api.migration = self.controller, leaving

        self._with_api(use)

    def _own_ports(self, token: str = "") -> ServerPorts:
        """Return this process's own address, whatever address clients are given."""
        host, port = self._config.host, self._rpc_address[1]
        host = DEFAULT_HOST if is_any_address(host) else host
        certificate, store = self._config.security.tls_certificate, (host, self._listening[1])
        return ServerPorts(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            lambda segment: store,
            certificate is not None,
            None if certificate is None else str(certificate),
            is_own=True,
            token=token,
            certificate=own_certificate(self._config.security),
        )

    def _health(self) -> Component:
        return server_health(self.store, self._answering, self.controller_uri)


def _token_key_of(security: ServerSecurity, folder: Path) -> TokenKey | None:
    """Return the key for delegation tokens; None if callers needn't authenticate."""
    if not security.authenticates:
        return None
    if security.signing_key_file is not None:
        file = check_path("the signing key's file", security.signing_key_file)
        return TokenKey.in_file(file, security.token_lifetime_s)
    folder.mkdir(parents=True, exist_ok=True)
    return TokenKey.in_folder(folder, security.token_lifetime_s)


class _Leaving:
    """Implementation of `/v1/migration`, by which `nadi migrate` moves a running server's data."""

    def __init__(self, folder: Path, store: SegmentStore) -> None:
        self._folder, self._store = folder, store
        self._hold = WriteFreeze(store)

    async def refresh(self) -> None:
        await self._hold.refresh()

    async def hold(self, limit_s: float) -> WriteFreezeReport:
        containers = await self._hold.begin(limit_s)
        return WriteFreezeReport(self._hold.id, self._store.id, self._hold.remaining_s, containers)

    async def go_on(self) -> None:
        await self._hold.end()

    async def leave(self, hold: str, to: str, migration: str) -> None:
        stored = await self._store.chunks.records()
        leave = partial(abandon_folder, self._folder, stored, to, migration)
        await self._hold.keep(hold, leave, partial(is_abandoned, stored))

    async def stop(self) -> None:
        """Release held writers before the server stops; if the data has moved, their requests are rejected."""
        await self._hold.end()
        if self._hold.is_kept:
            self._hold.refuse()
