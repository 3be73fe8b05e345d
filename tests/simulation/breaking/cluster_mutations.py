"""Mutated clusters that break one rule each (docs/decisions/0023), to test that simulations detect it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from msgspec.structs import replace

from nadi.cluster.admin import janitor as garbage
from nadi.cluster.membership import Membership, ServerLease
from nadi.cluster.proxy.active import Active
from nadi.cluster.reconciler import Reconciler
from nadi.cluster.storage import ClusterStorage
from nadi.controller.state.segments import Segments
from nadi.controller.transactions.decisions import Transactions
from nadi.segmentstore.chain.layout import ChainPosition
from nadi.segmentstore.chain.walk import ChainObjects, ChainWalk
from nadi.segmentstore.container.checkpoints import Checkpoints
from nadi.segmentstore.recovery.snapshotter import Snapshotter
from nadi.segmentstore.tier2 import records
from nadi.segmentstore.tier2.records import ContainerRecords, SnapshotManifest, VersionedRecord

from .mutations import Mutation, forgets_what_a_writer_has_stored, takes_an_append_twice


@contextmanager
def acknowledges_before_it_is_in_the_store() -> Iterator[None]:
    store, under_way = ChainObjects.store, set()

    async def hasty(self: ChainObjects, place: ChainPosition, parts: Sequence[bytes]) -> None:
        task = asyncio.create_task(store(self, place, parts))
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    with mock.patch.object(ChainObjects, "store", hasty):
        yield


@contextmanager
def takes_what_another_has_stored_for_its_own() -> Iterator[None]:
    store = ChainObjects.store

    async def trusting(self: ChainObjects, place: ChainPosition, parts: Sequence[bytes]) -> None:
        await store(self, place, parts)

    with mock.patch.object(ChainObjects, "store", trusting):
        yield


@contextmanager
def takes_a_log_over_without_sealing_it() -> Iterator[None]:
    async def unsealed(self: ChainWalk, place: ChainPosition, sequence: int) -> None:
        return None

    with mock.patch.object(ChainWalk, "_seal", unsealed):
        yield


@contextmanager
def claims_whatever_the_record_says_by_now() -> Iterator[None]:
    async def bold(self: Any, container: int, server: str, seen: VersionedRecord) -> VersionedRecord:
        nonce = self._runtime.unique()
        claimed = replace(
            seen.record, epoch=seen.record.epoch + 1, owner=server, target="", released=False, nonce=nonce
        )
        version = await self._registry.put(records.name_of(container), records._encode(claimed))
        return VersionedRecord(claimed, version)

    with mock.patch.object(ContainerRecords, "claim", bold):
        yield


@contextmanager
def lets_the_snapshot_of_an_overtaken_owner_count() -> Iterator[None]:
    async def bold(self: Any, container: int, epoch: int, **changes: Any) -> None:
        record, version = await self.read(container)
        value = records._encode(replace(record, nonce=self._runtime.unique(), **changes))
        await self._registry.compare_and_set(records.name_of(container), value, version)

    with mock.patch.object(ContainerRecords, "_change", bold):
        yield


@contextmanager
def asks_not_again_whether_its_claim_stands() -> Iterator[None]:
    async def confident(self: ClusterStorage) -> None:
        pass

    with mock.patch.object(ClusterStorage, "_still_claimed", confident):
        yield


@contextmanager
def answers_reads_though_it_may_have_been_replaced() -> Iterator[None]:
    with mock.patch.object(Reconciler, "may_answer", lambda self, number: number in self._parts):
        yield


@contextmanager
def goes_on_with_a_lease_that_had_ended() -> Iterator[None]:
    """A beat alone revives the lease, without a new term."""
    extend = ServerLease.extend

    def revive(self: ServerLease, sent: float) -> bool:
        if extend(self, sent) and self.term > 1:
            self.term -= 1
            self._settle()
        return False

    with mock.patch.object(ServerLease, "extend", revive):
        yield


@contextmanager
def extends_its_lease_by_beats_without_an_answer() -> Iterator[None]:
    in_time = Membership._in_time

    async def hopeful(self: Membership, call: Any, *limits: float) -> Any:
        if limits:  # this is a beat
            self._lease.extend(self._runtime.boottime())
        return await in_time(self, call, *limits)

    with mock.patch.object(Membership, "_in_time", hopeful):
        yield


@contextmanager
def gives_commands_without_its_lease() -> Iterator[None]:
    with mock.patch.object(Segments, "_check_lease"):
        yield


@contextmanager
def answers_as_a_controller_that_may_have_been_replaced() -> Iterator[None]:
    with mock.patch.object(Active, "check"):
        yield


@contextmanager
def gives_errors_as_a_controller_that_may_have_been_replaced() -> Iterator[None]:
    async def half_checked(self: Active, answer: Awaitable[Any]) -> Any:
        reply = await answer
        self.check()
        return reply

    with mock.patch.object(Active, "checked", half_checked):
        yield


@contextmanager
def knows_only_the_transactions_that_it_began() -> Iterator[None]:
    async def none(self: Transactions) -> None:
        pass

    with mock.patch.object(Transactions, "load", none):
        yield


@contextmanager
def releases_the_log_before_the_record_says_so() -> Iterator[None]:
    """The log is released once the snapshot is stored. (Doing it when the log is truncated would break nothing: a
    checkpoint truncates only up to the snapshot in the record.)"""
    snapshot, let_count = Checkpoints.snapshot, Snapshotter._let_count
    needed: dict[Any, int] = {}

    async def noted(self: Checkpoints) -> None:
        needed[self._parts.snapshots] = self._opened.state.log_needed()[0] or self.sequence + 1
        await snapshot(self)

    async def early(self: Snapshotter, manifest: SnapshotManifest) -> SnapshotManifest:
        assert isinstance(self._owner, ClusterStorage)
        chain = self._owner.chain
        chain.released(chain.start_after(manifest.sequence))
        chain.truncate(min(needed.get(self, 1), manifest.sequence + 1))
        return await let_count(self, manifest)

    with mock.patch.object(Checkpoints, "snapshot", noted), mock.patch.object(Snapshotter, "_let_count", early):
        yield


@contextmanager
def cleans_frames_that_the_log_still_needs() -> Iterator[None]:
    def past(record: Any, place: ChainPosition) -> bool:
        return place < ChainPosition(record.start.epoch, record.start.number + 3)

    with mock.patch.object(garbage, "_is_past", past):
        yield


@contextmanager
def cleans_chunks_that_no_snapshot_knows_yet() -> Iterator[None]:
    with mock.patch.object(garbage, "is_lost_chunk", lambda record, known, name, planned_by: name not in known):
        yield


CLUSTER_MUTATIONS: list[Mutation] = [
    acknowledges_before_it_is_in_the_store,
    takes_what_another_has_stored_for_its_own,
    takes_a_log_over_without_sealing_it,
    claims_whatever_the_record_says_by_now,
    lets_the_snapshot_of_an_overtaken_owner_count,
    asks_not_again_whether_its_claim_stands,
    answers_reads_though_it_may_have_been_replaced,
    goes_on_with_a_lease_that_had_ended,
    extends_its_lease_by_beats_without_an_answer,
    gives_commands_without_its_lease,
    answers_as_a_controller_that_may_have_been_replaced,
    gives_errors_as_a_controller_that_may_have_been_replaced,
    knows_only_the_transactions_that_it_began,
    releases_the_log_before_the_record_says_so,
    cleans_frames_that_the_log_still_needs,
    cleans_chunks_that_no_snapshot_knows_yet,
    forgets_what_a_writer_has_stored,
    takes_an_append_twice,
]
