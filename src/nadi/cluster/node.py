"""One server of a cluster: a segment store with its share of the containers, the controller if container 0 is among
them (`Leadership`), and the proxies that answer for the whole cluster.

The caller passes in the stores and network servers, so the same code runs over a bucket and in a simulation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nadi.access.authentication import Gate
from nadi.backoff import Backoff
from nadi.client.control.channel import open_channel
from nadi.client.control.security import Security
from nadi.cluster.admin.cluster_view import Operator
from nadi.cluster.admin.janitor import Janitor, clean_daily
from nadi.cluster.admin.metrics import CountedEngine, samples
from nadi.cluster.container_map import ContainerMap, RecordWatch
from nadi.cluster.membership import Membership
from nadi.cluster.membership_view import MembershipPace, ServerMember
from nadi.cluster.proxy.active import ClusterKey
from nadi.cluster.proxy.request_proxy import OpenChannel, RequestProxy
from nadi.cluster.proxy.segment_router import SegmentRouter
from nadi.cluster.reconciler import Reconciler
from nadi.cluster.storage import ClusterStorage
from nadi.controller.access import ControllerAccess, with_token
from nadi.controller.controller import Controller
from nadi.controller.retention.rounds import IndexTimes
from nadi.controller.scaling.decisions import DEFAULT_PROFILE, Profile
from nadi.defaults import DEFAULT_TOKEN_LIFETIME_S
from nadi.errors import InvalidArgumentError, NadiError, RequestTimeoutError
from nadi.limits import CLUSTER_BREAK_S, CLUSTER_CALL_S, CLUSTER_DRAIN_S, CLUSTER_LEAVE_S, CLUSTER_START_S, STOP_PORT_S
from nadi.object_log.engine import LogEngine, Registry
from nadi.object_log.identity import OwnLog, open_cluster, read_cluster, refuse_strangers, signing_key
from nadi.object_log.outcomes import patiently
from nadi.object_log.store_probe import prove
from nadi.observe.health import Component, HealthStatus, leaf
from nadi.observe.metrics import Sample
from nadi.runtime import Runtime
from nadi.segmentstore.container_registry import CONTROLLER_CONTAINER
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecords, VersionedRecord, check_stays
from nadi.shutdown import ShutdownSteps

log = logging.getLogger(__name__)
_POLL_S = 0.05


class Stores(NamedTuple):
    """The store of a server's cluster: as log engine, as registry, and as chunk store."""

    engine: LogEngine
    registry: Registry
    chunks: ChunkStore


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of one node.

    containers: number for a new cluster; None: see `open_cluster`. open_log: opens a log outside the store. gate: for
    callers; with it, tokens are valid for `token_lifetime_s`. security: for connections to other servers. channels: see
    `RequestProxy`. interval_s: see `ChainLog`. pace: of the whole cluster. audit_retention_ms: see `Controller`.
    version: of nadi, for people. encryption: source of the master key, see `ChunkStore.unlock`; a new cluster is
    encrypted unless it is None.
    """

    containers: int | None = None
    open_log: Callable[[], Awaitable[OwnLog]] | None = None
    gate: Gate | None = None
    token_lifetime_s: int = DEFAULT_TOKEN_LIFETIME_S
    security: Security = field(default_factory=Security)
    channels: OpenChannel = open_channel
    interval_s: float = 0.0
    pace: MembershipPace = field(default_factory=MembershipPace)
    scaling: Profile = DEFAULT_PROFILE
    audit_retention_ms: int | None = None
    version: str = ""
    encryption: str | None = None


class ServerAddresses(NamedTuple):
    """Addresses of a server, as given to clients. rest: "host:port", "" without a REST port."""

    store: tuple[str, int]
    rpc: tuple[str, int]
    rest: str = ""


class ClusterNode:
    """Node to `open`, then let clients in at its `store` and `proxy`, then `join`. stores: closed by the caller. cache:
    an empty folder for this server alone."""

    def __init__(self, stores: Stores, cache: Path, settings: NodeSettings, runtime: Runtime) -> None:
        self._stores, self._cache, self._settings, self._runtime = stores, cache, settings, runtime
        self._peer_tls = settings.security.contexts()
        self.id = runtime.unique()[:16]
        self.has_joined = False

    async def open(self, parts: ShutdownSteps) -> None:
        """Create or open the cluster in the store, and get ready; shutdown steps are added to `parts`.

        StoreError: the store can't hold a cluster. InvalidArgumentError: the cluster has another number of containers,
        or another log. UnavailableError: the store doesn't respond for a long time.
        """
        (engine, registry, chunks), settings, runtime = self._stores, self._settings, self._runtime
        await refuse_strangers(engine, runtime)  # before any write
        await prove(engine, registry, runtime)
        own_log = await settings.open_log() if settings.open_log is not None else None
        self._own_log = own_log.engine if own_log is not None else None
        self._log = CountedEngine(own_log.engine if own_log is not None else engine, runtime)
        encrypts = settings.encryption is not None
        owner = await patiently("read its owner", partial(read_cluster, engine), runtime) if encrypts else None
        if encrypts and owner is None:
            await chunks.unlock(settings.encryption, creates=True)  # the keys come first
        self.cluster = await open_cluster(engine, settings.containers, runtime, own_log, encrypted=encrypts)
        if self.cluster.is_encrypted:
            await chunks.unlock(settings.encryption, serves=True)
        elif encrypts:
            raise InvalidArgumentError(
                "the cluster in this store was created without encryption: leave out --encryption-key, or move its "
                "data to a new store with `nadi migrate OLD NEW --encrypt`"
            )
        key = ClusterKey(await signing_key(engine, runtime))
        self._tokens = key.token_key(settings.token_lifetime_s) if settings.gate is not None else None
        self._records = ContainerRecords(registry, runtime)
        first = await patiently("read a record", partial(self._records.read, CONTROLLER_CONTAINER), runtime)
        check_stays(first.record)
        self._watch = RecordWatch(registry, self._records, self.cluster.containers, runtime)
        self.map = ContainerMap(self._watch, self.cluster.containers, runtime)
        self.store = SegmentStore(
            self._cache,
            self.cluster.containers,
            self._tokens,
            runtime,
            chunks,
            parts=(),
            owner_of=self.map.store_of,
            on_lost=lambda number: self.reconciler.lost(number),
        )
        parts.step("the segment store", self.store.close, CLUSTER_BREAK_S)
        await self.store.start()
        gate, tokens = settings.gate, self._tokens
        access = None if gate is None or tokens is None else ControllerAccess(gate, tokens)
        self.proxy = RequestProxy(
            self.map,
            key,
            settings.security,
            access,
            settings.channels,
            may_answer=lambda: self.reconciler.may_answer(CONTROLLER_CONTAINER),
        )
        parts.step("the connections to other servers", self.proxy.close, STOP_PORT_S)

    def join(self, addresses: ServerAddresses, parts: ShutdownSteps, index_times: IndexTimes | None = None) -> None:
        """Announce this server and take over its share of containers; shutdown steps are added to `parts`. index_times:
        for the retention of a controller on this server."""
        self.addresses, self._index_times, runtime = addresses, index_times, self._runtime
        me = ServerMember(
            id=self.id,
            store=_joined(addresses.store),
            controller=_joined(addresses.rpc),
            rest=addresses.rest,
            version=self._settings.version,
            started_ms=runtime.now_ms(),
        )
        self.membership = Membership(
            self._stores.registry,
            me,
            runtime=runtime,
            pace=self._settings.pace,
            load=lambda: self.reconciler.load(),
            on_change=lambda: self.reconciler.wake(),
        )
        self.map.membership, self.map.own = self.membership, addresses.store
        self.leadership = Leadership(self._make_controller, self.proxy.active, runtime)
        self.reconciler = Reconciler(
            self.id,
            self.store,
            self.membership,
            self._records,
            self._watch,
            self._storage_of,
            self.cluster.containers,
            runtime,
            on_acquired=self.leadership.acquired,
            on_leaving=self.leadership.leaving,
            on_polled=lambda: self.proxy.follow(self.map.controller(self.id)),
        )
        self.operator = Operator(self.cluster, self.id, self.membership, self._watch, self.reconciler, self.store)
        self._janitor = asyncio.create_task(clean_daily(self.janitor(), runtime, self._cleans), name="janitor")
        self.has_joined = True
        self.membership.start()
        self.reconciler.start()
        parts.step("this server's part in the cluster", self._leave, CLUSTER_LEAVE_S + CLUSTER_CALL_S)

    async def settled(self, where: str) -> None:
        """Wait until the cluster has a controller that this server reaches. where: name of the store, for messages.
        RequestTimeoutError: there is none for a long time."""
        try:
            async with asyncio.timeout(CLUSTER_START_S):
                while self.leadership.controller is None and not self.map.controller(self.id):
                    await self._runtime.sleep(_POLL_S)
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"no server of the cluster in {where} has an active controller after {CLUSTER_START_S:.0f} s: check "
                "the messages above and the logs of the other servers"
            ) from error

    async def drain(self, limit_s: float = CLUSTER_DRAIN_S - CLUSTER_LEAVE_S - CLUSTER_BREAK_S) -> None:
        """Hand over all containers to the other servers. Returns when none is left, no other server accepts any, or
        `limit_s` has passed: by default, the time that a stop within CLUSTER_DRAIN_S leaves for it."""
        self.membership.drain()
        self.reconciler.wake()
        try:
            async with asyncio.timeout(limit_s):
                await self.reconciler.drained()
        except TimeoutError:
            log.warning("some containers weren't handed over in time: other servers take them over")

    async def _leave(self) -> None:
        """Leave the cluster. Steps that hang on an unresponsive store are abandoned: other servers recover from stored
        data."""
        self._janitor.cancel()
        await asyncio.wait([self._janitor])
        try:
            async with asyncio.timeout(CLUSTER_LEAVE_S if self.membership.lease_is_valid() else CLUSTER_CALL_S):
                await self.reconciler.stop()
                await self.leadership.stop()
                await self.reconciler.give_back()
                await self.membership.leave()
        except TimeoutError:
            log.warning("some containers weren't closed in time: other servers take them over as they are")
            self.store.forsake()

    def samples(self) -> Iterator[Sample]:
        here, controls = len(self.store.containers), self.leadership.controller is not None
        return samples(
            here, self.cluster.containers, self.membership, self.reconciler.moves, self._log, controls=controls
        )

    def health(self) -> Component:
        """Return the cluster's health: down while this server can't reach the store."""
        details = {"server": self.id, "term": self.membership.term if self.has_joined else 0}
        if not details["term"]:
            return leaf("cluster", HealthStatus.STARTING, details)
        return leaf("cluster", HealthStatus.UP if self.membership.lease_is_valid() else HealthStatus.DOWN, details)

    def controller_elsewhere(self) -> str:
        """Return the address of the active controller if it is on another server; "" if it is here or unknown."""
        addresses = self.map.controller(self.id) if self.has_joined else None
        return addresses.rpc if addresses is not None else ""

    def janitor(self, **how: Any) -> Janitor:
        """Return the store's garbage collector, active while this server is responsible for cleaning. how: see
        `Janitor`."""
        (engine, registry, chunks), count = self._stores, self.cluster.containers
        return Janitor(engine, registry, chunks, count, self._runtime, log=self._own_log, goes_on=self._cleans, **how)

    def _cleans(self) -> bool:
        return self._watch.owner(CONTROLLER_CONTAINER) == self.id and self.membership.lease_is_valid()

    def _storage_of(self, number: int, seen: VersionedRecord) -> ClusterStorage:
        args = number, self._cache / f"container-{number}", self.id, seen, self._log, self._records
        may_answer = partial(self.reconciler.may_answer, number)
        return ClusterStorage(*args, self._stores.chunks, self._runtime, self._settings.interval_s, may_answer)

    def _make_controller(self) -> tuple[Controller, Callable[[], None]]:
        own = _joined(self.addresses.store)
        router = SegmentRouter(self.store, own, self.map.store_of_segment, self.map.stores, self._peer_tls)
        exchange = router if not self.own_token else with_token(router, self.own_token)
        controller = Controller(
            exchange,
            clock=self._runtime,
            endpoint_of=self.map.endpoint_of,
            rpc_endpoint=self.addresses.rpc,
            scaling=self._settings.scaling,
            audit_retention_ms=self._settings.audit_retention_ms,
            is_leased=partial(
                self.reconciler.may_command, CONTROLLER_CONTAINER, self.reconciler.epoch(CONTROLLER_CONTAINER)
            ),
            place_of=router.place_of,
        )
        controller.retention.index_times = self._index_times
        return controller, router.close

    @property
    def own_token(self) -> str:
        """Return the token that gives this cluster's servers full access to its segments; "" if none is needed."""
        return "" if self._tokens is None else self._tokens.master()


def _joined(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


class Leadership:
    """Runs the controller while this server owns container 0.

    make: returns a controller that isn't started yet, and a function that closes it. changed: called with the
    controller that has become active here, or None.
    """

    def __init__(
        self,
        make: Callable[[], tuple[Controller, Callable[[], None]]],
        changed: Callable[[Controller | None], None],
        runtime: Runtime,
    ) -> None:
        self.controller: Controller | None = None  # once it answers
        self._make, self._changed, self._runtime = make, changed, runtime
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def acquired(self, number: int) -> None:
        if number == CONTROLLER_CONTAINER:
            await self.stop(restart=True)

    async def leaving(self, number: int) -> None:
        if number == CONTROLLER_CONTAINER:
            await self.stop()

    async def stop(self, *, restart: bool = False) -> None:
        """Stop the controller. restart: start a new one."""
        async with self._lock:
            task, self._task = self._task, None
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
            if restart:
                self._task = asyncio.create_task(self._run(), name="controller")

    async def _run(self) -> None:
        backoff = Backoff(first_s=0.1, longest_s=2.0, sleep=self._runtime.sleep)
        while True:
            controller, close = self._make()
            try:
                await controller.start()
                self.controller = controller
                self._changed(controller)
                log.info("this server has the active controller")
                await asyncio.get_running_loop().create_future()  # until it is cancelled
            except NadiError as error:  # another container may be moving between servers
                log.warning("the controller can't start yet, and will retry: %s", error)
            finally:
                if self.controller is not None:
                    self.controller = None
                    self._changed(None)
                try:
                    await controller.stop()
                except NadiError as error:
                    log.info("stopping the controller failed: %s", error)
                finally:
                    close()
            await backoff.pause()
