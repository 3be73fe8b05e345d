"""Mutated servers and clients that break one rule each, to test that simulations detect it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from nadi.controller.transactions import decisions
from nadi.controller.transactions.decisions import Transactions
from nadi.model.frontier import Frontier
from nadi.segmentstore.container import table_segments
from nadi.segmentstore.container.checkpoints import Checkpoints
from nadi.segmentstore.recovery.snapshotter import Snapshotter
from nadi.segmentstore.server import appends
from nadi.segmentstore.server.segments import find
from nadi.segmentstore.state.records import SegmentKind
from nadi.wire.fields import NO_VERSION

from ..machine import disk

Mutation = Callable[[], AbstractContextManager[object]]


@contextmanager
def acknowledges_before_it_is_durable() -> Iterator[None]:
    async def hasty(self: Any, sequence: int) -> None:
        self._storage.unsynced.append(sequence)
        asyncio.get_running_loop().call_later(0.05, self._storage.unsynced.clear)

    with mock.patch.object(disk.SimulatedLog, "_sync", hasty):
        yield


@contextmanager
def forgets_what_a_writer_has_stored() -> Iterator[None]:
    prepare = appends.Setup.prepare

    def forgetful(self: Any, frame: Any) -> int:
        prepare(self, frame)
        return NO_VERSION

    with mock.patch.object(appends.Setup, "prepare", forgetful):
        yield


@contextmanager
def takes_appends_of_a_session_that_was_replaced() -> Iterator[None]:
    store = appends._store

    def lenient(append: Any, frame: Any) -> int:
        record = find(frame.state, append.session.segment, SegmentKind.STREAM)
        stored = frame.state.attribute(record, append.writer)
        append.session.stored = NO_VERSION if stored is None else stored
        return store(append, frame)

    with mock.patch.object(appends, "_store", lenient):
        yield


@contextmanager
def takes_an_append_twice() -> Iterator[None]:
    """The writer's event number is neither checked nor reported."""
    store = appends._store

    def lenient(append: Any, frame: Any) -> int:
        record = find(frame.state, append.session.segment, SegmentKind.STREAM)
        stored = frame.state.attribute(record, append.writer)
        append.session.stored = NO_VERSION if stored is None else stored
        append.last = max(append.last, append.session.stored)
        return store(append, frame)

    with forgets_what_a_writer_has_stored(), mock.patch.object(appends, "_store", lenient):
        yield


@contextmanager
def answers_a_commit_before_it_is_stored() -> Iterator[None]:
    decide = Transactions._decide_all

    async def later(work: Any) -> None:
        await asyncio.sleep(0.5)
        await work

    async def hasty(self: Any, *arguments: Any, **how: Any) -> bool:
        self._flow.tasks.spawn(later(decide(self, *arguments, **how)))
        return True

    with mock.patch.object(Transactions, "_decide_all", hasty):
        yield


@contextmanager
def commits_half_a_transaction() -> Iterator[None]:
    merge = decisions.merge

    async def half(flow: Any, name: Any, targets: Any, epoch: int, batch: Any) -> Any:
        positions = await merge(flow, name, targets[:1], epoch, batch)
        for ends in positions.values():
            ends.update({target.id: 0 for target in targets[1:]})
        return positions

    with mock.patch.object(decisions, "merge", half):
        yield


@contextmanager
def commits_to_a_scaled_stream_without_sealing() -> Iterator[None]:
    """The stream's former segments stay open alongside the transactions' epoch."""

    async def measure(flow: Any, name: Any, ids: Any, label: str) -> None:
        sizes = {segment: await flow.segments.length(name.segment(segment)) for segment in ids}
        await flow.metadata.put_sizes(name, label, sizes)

    with mock.patch.object(decisions, "seal_and_measure", measure):
        yield


@contextmanager
def sets_table_entries_whatever_their_version() -> Iterator[None]:
    with mock.patch.object(table_segments, "_check_condition"):
        yield


@contextmanager
def reads_successors_before_all_that_they_follow() -> Iterator[None]:
    def naive(self: Any, segment_id: int, successors: Any) -> list[Any]:
        self._cut.remove(self._active.pop(segment_id))
        started = [piece for piece in successors if piece.segment_id not in self._active]
        for piece in started:
            self._cut.add(piece)
            self._active[piece.segment_id] = piece
        return started

    with mock.patch.object(Frontier, "complete", naive):
        yield


@contextmanager
def releases_the_log_for_a_snapshot_on_its_way() -> Iterator[None]:
    with mock.patch.object(Snapshotter, "sequence", property(lambda self: self._copied_sequence)):
        yield


@contextmanager
def releases_the_log_for_what_only_the_state_has() -> Iterator[None]:
    """It was written by a checkpoint, and is lost with the process."""
    truncate = Checkpoints.truncate_log

    def beyond(self: Any) -> None:
        truncate(self)
        oldest, damaged = self._opened.state.log_needed()
        self._opened.log.truncate(min(self.sequence + 1, oldest or self.sequence + 1), keep=damaged)

    with mock.patch.object(Checkpoints, "truncate_log", beyond):
        yield


MUTATIONS: list[Mutation] = [
    acknowledges_before_it_is_durable,
    forgets_what_a_writer_has_stored,
    takes_appends_of_a_session_that_was_replaced,
    takes_an_append_twice,
    answers_a_commit_before_it_is_stored,
    commits_half_a_transaction,
    commits_to_a_scaled_stream_without_sealing,
    sets_table_entries_whatever_their_version,
    reads_successors_before_all_that_they_follow,
    releases_the_log_for_a_snapshot_on_its_way,
    releases_the_log_for_what_only_the_state_has,
]
