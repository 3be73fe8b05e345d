"""One server of a cluster, put together: a segment store with the containers that are its share, the controller if
container 0 is among them (`Leadership`), and what answers for the whole cluster. Its stores and its doors are handed
in, so it is the same over a bucket and in a simulation.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
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
from nadi.cluster.container_map import Map, RecordWatch
from nadi.cluster.membership import Membership
from nadi.cluster.membership_view import MembershipPace, ServerMember
from nadi.cluster.proxy.active import ClusterKey
from nadi.cluster.proxy.request_proxy import OpenChannel, RequestProxy
from nadi.cluster.proxy.segment_router import SegmentRouter
from nadi.cluster.reconciler import Keeper
from nadi.cluster.storage import ClusterParts
from nadi.controller.access import ControllerAccess, with_token
from nadi.controller.controller import Controller
from nadi.controller.retention.rounds import IndexTimes
from nadi.controller.scaling.judge import DEFAULT_PROFILE, Profile
from nadi.defaults import DEFAULT_TOKEN_LIFETIME_S
from nadi.errors import NadiError, RequestTimeoutError
from nadi.limits import CLUSTER_BREAK_S, CLUSTER_CALL_S, CLUSTER_DRAIN_S, CLUSTER_LEAVE_S, CLUSTER_START_S, STOP_DOOR_S
from nadi.object_log.engine import LogEngine, Registry
from nadi.object_log.identity import OwnLog, open_cluster, refuse_strangers, signing_key
from nadi.object_log.outcomes import patiently
from nadi.object_log.store_probe import prove
from nadi.observe.health import Component, HealthStatus, leaf
from nadi.observe.metrics import Sample
from nadi.runtime import Runtime
from nadi.segmentstore.container_registry import CONTROLLER_CONTAINER
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecords, VersionedRecord, check_stays
from nadi.shutdown import Ending

log = logging.getLogger(__name__)
_LOOK_S = 0.05


class Stores(NamedTuple):
    """What a server's cluster stands on: the one store, as engine, as registry, and as what keeps chunks."""

    engine: LogEngine
    registry: Registry
    chunks: ChunkStore


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """containers: of a new cluster; None: see `open_cluster`. open_log: opens the log that isn't in the store. gate:
    for callers; with it, tokens that are valid for so long. security: how other servers' doors are reached. channels:
    see `RequestProxy`. interval_s: see `ChainLog`. pace: of all of the cluster. version: of nadi, for people."""

    containers: int | None = None
    open_log: Callable[[], Awaitable[OwnLog]] | None = None
    gate: Gate | None = None
    token_lifetime_s: int = DEFAULT_TOKEN_LIFETIME_S
    security: Security = field(default_factory=Security)
    channels: OpenChannel = open_channel
    interval_s: float = 0.0
    pace: MembershipPace = field(default_factory=MembershipPace)
    scaling: Profile = DEFAULT_PROFILE
    version: str = ""


class ServerAddresses(NamedTuple):
    """Where a server answers, as clients are told. rest: "host:port", "" if there is none."""

    store: tuple[str, int]
    rpc: tuple[str, int]
    rest: str = ""


class ClusterNode:
    """`open` it, let clients in at its `store` and its `proxy`, and `join`. stores: the caller's to close. cache: a
    folder of this server's own, and empty."""

    def __init__(self, stores: Stores, cache: Path, settings: NodeSettings, runtime: Runtime) -> None:
        self._stores, self._cache, self._settings, self._runtime = stores, cache, settings, runtime
        self._peer_tls: ssl.SSLContext | None = settings.security.ssl_context()
        self.id = runtime.unique()[:16]

    async def open(self, parts: Ending) -> None:
        """See that the store can hold a cluster, make it or find it there, and get ready; `parts` has what ends it.
        StoreError: the store can't hold a cluster. InvalidArgumentError: it has another number of containers, or
        another log. UnavailableError: the store gives no answer for a long while."""
        (engine, registry, chunks), settings, runtime = self._stores, self._settings, self._runtime
        await refuse_strangers(engine, runtime)  # before anything is written there
        await prove(engine, registry, runtime)
        own_log = await settings.open_log() if settings.open_log is not None else None
        self._own_log = own_log.engine if own_log is not None else None
        self._log = CountedEngine(own_log.engine if own_log is not None else engine, runtime)
        self.cluster = await open_cluster(engine, settings.containers, runtime, own_log)
        key = ClusterKey(await signing_key(engine, runtime))
        self._tokens = key.token_key(settings.token_lifetime_s) if settings.gate is not None else None
        self._records = ContainerRecords(registry, runtime)
        first = await patiently("read a record", partial(self._records.read, CONTROLLER_CONTAINER), runtime)
        check_stays(first.record)
        self._watch = RecordWatch(registry, self._records, self.cluster.containers, runtime)
        self.map = Map(self._watch, self.cluster.containers, runtime)
        self.store = SegmentStore(
            self._cache,
            self.cluster.containers,
            self._tokens,
            runtime,
            chunks,
            parts=(),
            owner_of=self.map.store_of,
            on_lost=lambda number: self.keeper.lost(number),
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
            may_answer=lambda: self.keeper.may_answer(CONTROLLER_CONTAINER),
        )
        parts.step("the connections to other servers", self.proxy.close, STOP_DOOR_S)

    def join(self, addresses: ServerAddresses, parts: Ending, index_times: IndexTimes | None = None) -> None:
        """Say that this server is there, and take what is its share; `parts` has what ends that. index_times: for the
        retention of a controller here."""
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
            load=lambda: self.keeper.load(),
            on_change=lambda: self.keeper.wake(),
        )
        self.map.membership, self.map.own = self.membership, addresses.store
        self.leadership = Leadership(self._make_controller, self.proxy.active, runtime)
        self.keeper = Keeper(
            self.id,
            self.store,
            self.membership,
            self._records,
            self._watch,
            self._parts_of,
            self.cluster.containers,
            runtime,
            on_taken=self.leadership.taken,
            on_leaving=self.leadership.leaving,
            on_looked=lambda: self.proxy.follow(self.map.controller(self.id)),
        )
        self.operator = Operator(self.cluster, self.id, self.membership, self._watch, self.keeper, self.store)
        self._janitor = asyncio.create_task(clean_daily(self.janitor(), runtime, self._cleans), name="janitor")
        self.membership.start()
        self.keeper.start()
        parts.step("this server's part in the cluster", self._leave, CLUSTER_LEAVE_S + CLUSTER_CALL_S)

    async def settled(self, where: str) -> None:
        """Wait until the cluster has a controller that this server reaches. where: its store, for people.
        RequestTimeoutError: it has none for a long while."""
        try:
            async with asyncio.timeout(CLUSTER_START_S):
                while self.leadership.controller is None and not self.map.controller(self.id):
                    await self._runtime.sleep(_LOOK_S)
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"no server of the cluster in {where} has an active controller after {CLUSTER_START_S:.0f} s: see "
                "the messages above, and those of the other servers"
            ) from error

    async def drain(self, limit_s: float = CLUSTER_DRAIN_S - CLUSTER_LEAVE_S - CLUSTER_BREAK_S) -> None:
        """Hand all containers over to the other servers; return when none is here, nobody takes any, or it has taken so
        long: by default, what a stop within CLUSTER_DRAIN_S leaves for it."""
        self.membership.drain()
        self.keeper.wake()
        try:
            async with asyncio.timeout(limit_s):
                await self.keeper.drained()
        except TimeoutError:
            log.warning("not all containers could be handed over in time: others take over what is left")

    async def _leave(self) -> None:
        """What waits for a store that doesn't answer isn't waited for: the others take over from what is stored."""
        self._janitor.cancel()
        await asyncio.wait([self._janitor])
        try:
            async with asyncio.timeout(CLUSTER_LEAVE_S if self.membership.lease_is_valid() else CLUSTER_CALL_S):
                await self.keeper.stop()
                await self.leadership.stop()
                await self.keeper.give_back()
                await self.membership.leave()
        except TimeoutError:
            log.warning("the containers that are still here can't be closed in time: others take them over as they are")
            self.store.forsake()

    def samples(self) -> Iterator[Sample]:
        here, controls = len(self.store.containers), self.leadership.controller is not None
        return samples(here, self.cluster.containers, self.membership, self.keeper.moves, self._log, controls=controls)

    def health(self) -> Component:
        """It isn't up while it can't reach the store."""
        details = {"server": self.id, "term": self.membership.term}
        if not self.membership.term:
            return leaf("cluster", HealthStatus.STARTING, details)
        return leaf("cluster", HealthStatus.UP if self.membership.lease_is_valid() else HealthStatus.DOWN, details)

    def controller_elsewhere(self) -> str:
        """The address of the active controller, if that is another server's; "" otherwise, and if it isn't known."""
        elsewhere = self.map.controller(self.id)
        return elsewhere.rpc if elsewhere is not None else ""

    def janitor(self, **how: Any) -> Janitor:
        """For the store, as long as cleaning it is this server's. how: see `Janitor`."""
        (engine, registry, chunks), count = self._stores, self.cluster.containers
        return Janitor(engine, registry, chunks, count, self._runtime, log=self._own_log, goes_on=self._cleans, **how)

    def _cleans(self) -> bool:
        return self._watch.owner(CONTROLLER_CONTAINER) == self.id and self.membership.lease_is_valid()

    def _parts_of(self, number: int, seen: VersionedRecord) -> ClusterParts:
        where = number, self._cache / f"container-{number}", self.id, seen, self._log, self._records
        may_answer = partial(self.keeper.may_answer, number)
        return ClusterParts(*where, self._stores.chunks, self._runtime, self._settings.interval_s, may_answer)

    def _make_controller(self) -> tuple[Controller, Callable[[], None]]:
        own = _joined(self.addresses.store)
        reach = SegmentRouter(self.store, own, self.map.store_of_segment, self.map.stores, self._peer_tls)
        exchange = reach if not self.own_token else with_token(reach, self.own_token)
        controller = Controller(
            exchange,
            clock=self._runtime,
            endpoint_of=self.map.endpoint_of,
            rpc_endpoint=self.addresses.rpc,
            scaling=self._settings.scaling,
            is_leased=partial(self.keeper.may_command, CONTROLLER_CONTAINER, self.keeper.epoch(CONTROLLER_CONTAINER)),
            place_of=reach.place_of,
        )
        controller.retention.index_times = self._index_times
        return controller, reach.close

    @property
    def own_token(self) -> str:
        """With which servers of this cluster may do anything with its segments; "" if that needs none."""
        return "" if self._tokens is None else self._tokens.master()


def _joined(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


class Leadership:
    """make: makes a controller that isn't started yet, and what ends it. changed: told who is active here, or None."""

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

    async def taken(self, number: int) -> None:
        if number == CONTROLLER_CONTAINER:
            await self.stop(goes_on=True)

    async def leaving(self, number: int) -> None:
        if number == CONTROLLER_CONTAINER:
            await self.stop()

    async def stop(self, *, goes_on: bool = False) -> None:
        """goes_on: with another one."""
        async with self._lock:
            task, self._task = self._task, None
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
            if goes_on:
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
            except NadiError as error:  # another container may be on its way to another server
                log.warning("the controller can't start yet: %s", error)
            finally:
                if self.controller is not None:
                    self.controller = None
                    self._changed(None)
                try:
                    await controller.stop()
                except NadiError as error:
                    log.info("the controller's end: %s", error)
                finally:
                    close()
            await backoff.pause()
