"""Indexers: each follows its share of a stream's segments and adds their events to the index in shards. `run` and
`serve` run an indexer; `backfill_parts` divides a stream's history among many processes.

The events of a third of a second become a shard, which can be searched once it is in the manifest; while catching up,
shards are large. A shard is stored first, then the dead letters, then the manifest is changed: a crash before that
leaves an unreferenced object, and the next indexer indexes the same events again.

One indexer of an index also maintains the shards: it merges them and deletes retired, emptied and orphaned ones.

Dead letters are invalid events, each stored once, numbered by its offset.

During a backfill, the manifest lists the remaining parts. A part's shard is added and the part removed in one change,
so repeated parts are indexed once. Meanwhile the live stream is followed from the tail at which the history was
divided.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec.structs import replace

from nadi import errors, limits
from nadi.client.aio import StreamManager
from nadi.client.blocking import manager as blocking
from nadi.client.blocking.face import inside
from nadi.client.control.security import Credentials
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import known_ranges
from nadi.client.reading.damage import SKIP
from nadi.client.reading.segment_range import read_segment_range
from nadi.client.scan.connection import ConnectionSettings, client_of, connection_of
from nadi.client.scan.pieces import ScanRange, split_large
from nadi.client.segments.info import segment_info
from nadi.client.stream_cuts.arrival_times import UNKNOWN, arrival_ranges, arrival_times
from nadi.client.stream_cuts.cuts import slices_between
from nadi.defaults import DEFAULT_URI
from nadi.model.frontier import Bound
from nadi.model.streamcut import StreamCut
from nadi.naming import SEARCH_TABLE, segment_name
from nadi.process.dead_letters import DeadLetter
from nadi.process.members import Members
from nadi.process.outputs import OutputWriter
from nadi.process.runner import run_program, until
from nadi.process.segment_follower import PositionConflictError, SegmentProgress, check_same, progress_at
from nadi.process.worker import BatchLimits, SegmentBatch, StreamWorker, cancel_all
from nadi.runtime import REAL
from nadi.search.definition import REMADE, Definitions, IndexDefinition, IndexNotFoundError, indexer_keys
from nadi.search.fields import check_installed
from nadi.search.objects import Shards, delete_if_orphaned, identity, labelled_shards, why_retained
from nadi.search.shards.building import (
    BuildResult,
    EventRun,
    InvalidEvent,
    bodies_of,
    build,
    clean_work_folders,
    merge,
    orders,
)
from nadi.search.shards.manifest import (
    HistoryOrders,
    Shard,
    ShardManifest,
    Span,
    created_ms,
    joined,
    new_name,
    past_micros,
    to_merge,
)


def dead_letter_writer(manager: StreamManager, scope: str, definition: IndexDefinition) -> OutputWriter | None:
    """Return the writer of dead letters; None without a dead-letter stream."""
    to = definition.dead_letters
    return None if to is None else OutputWriter(manager, scope, definition.stream, to, definition.id)


async def write_dead_letters(
    writer: OutputWriter, scope: str, stream: str, invalid: Iterable[InvalidEvent], runs: dict[int, str]
) -> None:
    """Write dead letters. runs: by segment, the series of ascending numbers that they belong to."""
    encoded = [
        DeadLetter(
            by=f"index {scope}/{stream}",
            segment=segment_name(scope, stream, event.segment_id),
            offset=event.offset,
            reason=event.reason,
            data=event.data,
        )
        for event in invalid
    ]
    await writer.write_dead_letters(encoded, runs)


def series_since(origin: int) -> str:
    """Name the series of dead letters of a segment that is followed from `origin`."""
    return f"since {origin}" if origin else ""


_LEAST_MERGED = 8  # tantivy's default
OnStep = Callable[[str], None]


class Indexer(StreamWorker[ShardManifest]):
    """Adds a stream's events to its index. on_step: called with the name of each step of a batch: "built", "stored",
    "dead-lettered", "added"."""

    remedy = REMADE

    def __init__(
        self,
        manager: StreamManager,
        definitions: Definitions,
        definition: IndexDefinition,
        shards: Shards,
        *,
        on_step: OnStep = lambda step: None,
    ) -> None:
        scope, stream = definitions.scope, definition.stream
        super().__init__(
            manager,
            scope,
            stream,
            definitions.manifest(definition),
            Members(stores_of(manager), scope, SEARCH_TABLE, indexer_keys(definition)),
            BatchLimits(limits.SEARCH_BATCH_BYTES, limits.SEARCH_BATCH_EVENTS, limits.SEARCH_COMMIT_S),
            logging.getLogger(f"nadi.search.{scope}.{stream}"),
        )
        self._definitions, self._definition, self._shards = definitions, definition, shards
        self._dead_letters = dead_letter_writer(manager, scope, definition)
        self._added = asyncio.Event()  # set when the manifest gets a shard
        self._unusable: set[str] = set()  # shards whose objects are missing or damaged: never merged
        self._reported_orphans: set[str] = set()  # orphans that may be another server's
        self._on_step = on_step
        self._adding: asyncio.Task[None] | None = None
        self._batch: Sequence[SegmentBatch] = ()  # the batch being added
        self._loose: set[str] = set()  # shards that may be stored and aren't in the manifest yet

    def _background_tasks(self, stop: asyncio.Event) -> Sequence[Coroutine[None, None, None]]:
        return (self._maintain_shards(stop),)

    async def _failed(self, error: errors.NadiError, tasks: Sequence[asyncio.Task[None]]) -> None:
        if not isinstance(error, IndexNotFoundError | errors.StreamNotFoundError | errors.ScopeNotFoundError):
            await super()._failed(error, tasks)
        self._added.set()
        adding = [self._adding] if self._adding is not None else []
        await asyncio.wait([*tasks, *adding], timeout=limits.PROCESS_DEAD_S)  # calls in threads can't be cancelled
        if not isinstance(error, IndexNotFoundError):
            await self._delete_with_scope(limits.SEARCH_SCOPE_S)
            raise error
        self._log.info("the index was deleted: the indexer ends")
        try:  # the deletion may have listed the shards before these were stored
            await self._shards.delete(list(self._loose))
        except errors.NadiError as failure:
            self._log.warning("can't delete shards %s: %s", ", ".join(self._loose), failure)
        await self._delete_with_scope(0.0)

    def _close(self) -> None:
        if self._dead_letters is not None:
            self._dead_letters.close()

    async def _delete_with_scope(self, within_s: float) -> None:
        """Delete all shards if the index was deleted with its scope, because nothing else deletes them then."""
        try:
            if await delete_if_orphaned(self._manager, self._shards, within_s):
                self._log.info("the scope was deleted: deleted the shards of the index")
        except errors.NadiError as error:
            self._log.warning("can't delete the shards of the deleted scope; run `nadi search clean`: %s", error)

    async def _check(self) -> bool:
        definition = await self._definitions.get(self._stream)
        if definition.id != self._definition.id:
            raise IndexNotFoundError(self._scope, self._stream)
        return not definition.is_stopped

    async def _is_complete(self) -> bool:
        if self._positions.newest.followed:
            return False
        manifest = await self._positions.get()
        if manifest.followed or manifest.past:
            return False
        await check_same(self._stores, self._scope, self._stream, manifest.segments, REMADE)
        return True

    # --- a batch ------------------------------------------------------------------------------

    def _poll_interval_s(self) -> float:
        return limits.SEARCH_POLL_S

    def _can_handle(self) -> bool:
        return self._adding is None or self._adding.done()

    def _unrecorded(self) -> Collection[int]:
        return {one.followed.reach.segment_id for one in self._batch}

    async def _handle(self, batch: Sequence[SegmentBatch], stop: asyncio.Event) -> None:
        """Start adding a batch; the next one is collected meanwhile."""
        await self._finish()
        if not batch:
            return
        self._batch = batch
        self._adding = asyncio.create_task(self._add(await self._runs(batch), batch))
        self._adding.add_done_callback(lambda _: self._follower.wakeup.set())

    async def _finish(self) -> None:
        if self._adding is not None:
            await self._adding
        self._adding, self._batch = None, ()
        while len(self._positions.newest.shards) >= limits.SEARCH_SHARDS:  # merging can't keep up
            await asyncio.sleep(limits.SEARCH_POLL_S)
            await self._positions.get()

    async def _discard(self) -> None:
        adding, self._adding, self._batch = self._adding, None, ()
        if adding is not None:
            await cancel_all([adding])

    async def _runs(self, batch: Sequence[SegmentBatch]) -> list[EventRun]:
        async def of(item: SegmentBatch) -> EventRun:
            reach = item.followed.reach
            offsets = np.concatenate([block.offsets() for block in item.blocks])
            name = segment_name(self._scope, self._stream, reach.segment_id)
            try:
                arrivals = await arrival_times(
                    self._stores, name, offsets, item.blocks[-1].offset + item.blocks[-1].size_bytes
                )
            except errors.SegmentNotFoundError:  # truncated since it was read: retention deletes the shard
                arrivals = np.full(len(offsets), UNKNOWN, np.int64)
            return EventRun(reach.segment_id, item.blocks, orders(arrivals, item.followed.order))

        return list(await asyncio.gather(*map(of, batch)))

    async def _add(self, runs: Sequence[EventRun], batch: Sequence[SegmentBatch]) -> None:
        built = await REAL.in_thread(build, runs, self._definition.format, self._definition.fields)
        self._on_step("built")
        name = new_name()
        self._loose.add(name)
        shard = await self._shards.put_built(name, built)
        self._on_step("stored")
        await self._write_dead_letters(built)
        self._on_step("dead-lettered")

        def is_added(manifest: ShardManifest) -> bool:
            if shard is not None:
                return any(item.id == shard.id for item in manifest.shards)
            reached = {reach.segment_id: reach.reached for reach in manifest.followed}
            return all(reached.get(step.segment_id) == step.end for step in built.steps)

        def added(manifest: ShardManifest) -> ShardManifest:
            invalid = len(built.invalid)
            return manifest.advanced(
                built.steps, shard, indexed=built.docs, invalid=invalid, field_counts=built.field_counts
            )

        await self._positions.change(added, is_added)
        self._loose.discard(name)
        self._on_step("added")
        for item, step in zip(batch, built.steps, strict=True):
            item.followed.order = step.order
        self._count(built.docs + len(built.invalid))
        self._added.set()

    async def _write_dead_letters(self, built: BuildResult) -> None:
        if not built.invalid or self._dead_letters is None:
            return
        segments = {event.segment_id for event in built.invalid}
        steps = [step for step in built.steps if step.segment_id in segments]
        manifest = await self._positions.change(lambda manifest: manifest.lettered(steps))
        runs = {segment: series_since(manifest.segments[segment].origin) for segment in segments}
        await write_dead_letters(self._dead_letters, self._scope, self._stream, built.invalid, runs)

    # --- the shards -----------------------------------------------------------------------------

    async def _maintain_shards(self, stop: asyncio.Event) -> None:
        """Merge shards and delete those no longer needed, until `stop` is set."""
        tidied = -limits.SEARCH_TIDY_S
        while not stop.is_set():
            self._added.clear()
            try:
                if self._members.is_first:
                    await self._merge(stop)
                    if REAL.monotonic() - tidied >= limits.SEARCH_TIDY_S:
                        tidied = REAL.monotonic()
                        await self._tidy()
            except PositionConflictError as error:
                self._log.info("%s", error)
            except (IndexNotFoundError, errors.StoreError):
                raise
            except errors.NadiError as error:
                self._log.warning("can't maintain the shards; retrying: %s", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._added.wait(), limits.SEARCH_TIDY_S)

    async def _merge(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            shards = [shard for shard in self._positions.newest.shards if shard.id not in self._unusable]
            groups = to_merge(shards, _LEAST_MERGED, limits.SEARCH_MERGE_SHARDS, limits.SEARCH_MERGE_DOCS)
            if not groups:
                return
            objects = [await self._object(shard.id) for shard in groups[-1]]
            if all(data is not None for data in objects):
                await self._merge_all(groups[-1], [data for data in objects if data is not None])

    async def _object(self, shard: str) -> memoryview | None:
        """Return the shard's data, or None if it is missing or damaged: then it isn't merged, and queries report it."""
        data = await self._shards.get(shard)
        if data is None:
            if all(other.id != shard for other in (await self._positions.get()).shards):
                raise PositionConflictError(f"another worker has merged or deleted shard {shard}")
            problem = f"object {shard} of the index is missing in {self._definition.url}"
        else:
            try:
                await REAL.in_thread(lambda: [*bodies_of(data, shard)])
                return data
            except errors.StoreError as error:
                problem = str(error)
        self._unusable.add(shard)
        self._log.error("can't merge or search a shard; delete and recreate the index to repair it: %s", problem)
        return None

    async def _merge_all(self, group: list[Shard], objects: list[memoryview]) -> None:
        names = [shard.id for shard in group]
        parts = await REAL.in_thread(merge, list(zip(names, objects, strict=True)), self._definition.fields)
        spans = joined(span for shard in group for span in shard.spans)
        merged = Shard(new_name(), sum(shard.docs for shard in group), sum(map(len, parts)), spans)
        self._loose.add(merged.id)
        await self._shards.put(merged.id, parts)
        await self._positions.change(
            lambda manifest: manifest.merged(names, merged, REAL.now_ms()),
            lambda manifest: any(other.id == merged.id for other in manifest.shards),
        )
        self._loose.discard(merged.id)

    async def _tidy(self) -> None:
        await self._delete_truncated()
        before_ms = REAL.now_ms() - limits.SEARCH_RETIRED_S * 1000
        if old := [shard for shard, at in self._positions.newest.retired.items() if at < before_ms]:
            await self._shards.delete(old)
            await self._positions.change(
                lambda manifest: manifest.without_retired(old), lambda manifest: not manifest.retired.keys() & set(old)
            )
        await self._delete_orphans()

    async def _delete_truncated(self) -> None:
        if not self._positions.newest.shards:
            return
        head = await self._manager.cuts(self._definitions.scope, self._definition.stream).head()
        bound = Bound(head.positions, await self._definitions.ranges(head))
        heads = {reach.segment_id: bound.limit(reach.range) for reach in self._positions.newest.segments.values()}
        await self._positions.change(lambda manifest: manifest.truncated(heads, REAL.now_ms()))

    async def _delete_orphans(self) -> None:
        names = await self._shards.sizes()
        manifest = await self._positions.get()  # read after the listing, so that shards in neither are orphans or new
        known = {shard.id for shard in manifest.shards} | manifest.retired.keys()
        before_ms = REAL.now_ms() - limits.SEARCH_ORPHAN_S * 1000
        orphans = [name for name in names if name not in known and (created_ms(name) or before_ms) < before_ms]
        if not orphans:
            return
        if why := why_retained(await self._shards.labelled(), await identity(self._manager)):
            if not self._reported_orphans.issuperset(orphans):
                self._log.warning("keeping %d shards that aren't in the manifest: %s", len(orphans), why)
            self._reported_orphans.update(orphans)
            return
        await self._shards.delete(orphans)


def run(
    scope: str,
    stream: str,
    controller_uri: str = DEFAULT_URI,
    *,
    credentials: Credentials | None = None,
    trust_store: str | os.PathLike[str] | None = None,
) -> None:
    """Run an indexer of a stream's index until Ctrl-C, SIGTERM, `stop` or the end of a sealed stream. Any number of
    indexers may run and share the segments.
    """
    run_program(
        lambda manager, stop: serve(manager, scope, stream, stop=stop), controller_uri, credentials, trust_store
    )


async def serve(
    manager: StreamManager,
    scope: str,
    stream: str,
    *,
    stop: asyncio.Event | None = None,
    on_step: OnStep = lambda step: None,
) -> None:
    """Run an indexer with a client of `nadi.client.aio` until `stop` is set; see `run`.

    on_step: called after each step of a batch, see `Indexer`.
    """
    check_installed()
    await until(stop, partial(_serve, manager, scope, stream, on_step))


async def _serve(manager: StreamManager, scope: str, stream: str, on_step: OnStep, stop: asyncio.Event) -> None:
    definitions = Definitions(manager, scope)
    async with definitions.named(stream):
        definition = await definitions.get(stream)
    if definition.is_stopped:
        definition = await definitions.stop(stream, is_stopped=False)
    await REAL.in_thread(clean_work_folders)
    async with labelled_shards(manager, scope, definition) as shards:
        await Indexer(manager, definitions, definition, shards, on_step=on_step).run(stop)


@dataclass(frozen=True, slots=True)
class BackfillPart:
    """A part of a stream's history: pickle it and have any process `index` it, one of a pool's or of Spark's. It
    contains the credentials given to the client that made it, if any."""

    connection: ConnectionSettings
    scope: str
    stream: str
    span: Span

    @property
    def size_bytes(self) -> int:
        """Bytes in the stream, events' headers included."""
        return self.span[2] - self.span[1]

    def index(self) -> bool:
        """Index the part; return False if it was indexed already."""
        client = client_of(self.connection)
        return client.run(_index(client.manager, self.scope, self.stream, self.span))


def backfill_parts(
    manager: blocking.StreamManager, scope: str, stream: str, *, max_bytes: int = limits.SEARCH_BATCH_BYTES
) -> list[BackfillPart]:
    """Divide the events that aren't indexed yet, up to the stream's tail, and return the parts; or return the remaining
    parts of an earlier call. StreamRecreatedError if the stream was recreated since the index was.

    max_bytes: approximate size of a part; each becomes a shard.
    """
    thread, core = inside(manager)
    if not 0 < max_bytes <= limits.SEARCH_BATCH_BYTES:
        raise errors.InvalidArgumentError(f"max_bytes must be 1 to {limits.SEARCH_BATCH_BYTES:,}, not {max_bytes:,}")
    spans = thread.run(_divide(core, scope, stream, max_bytes))
    connection = connection_of(core)
    return [BackfillPart(connection, scope, stream, span) for span in spans]


async def _divide(manager: StreamManager, scope: str, stream: str, max_bytes: int) -> list[Span]:
    definitions = Definitions(manager, scope)
    async with definitions.named(stream):
        definition = await definitions.get(stream)

    async def with_past(known: ShardManifest | None) -> ShardManifest | None:
        if known is None:
            raise IndexNotFoundError(scope, stream)
        if known.past:
            return None
        await check_same(definitions.stores, scope, stream, known.segments, REMADE)
        tail = await manager.cuts(scope, stream).tail()
        spans = await _spans(manager, scope, known, tail, max_bytes)
        if not spans:
            return None
        orders = await _orders(manager, scope, stream, known, spans)
        last = {reach.segment_id: reach.order for reach in known.segments.values()}
        last |= {segment: order.last for segment, order in orders.items()}  # so that later events get greater orders
        followed = [
            replace(segment, order=last.get(segment.segment_id, 0))
            for segment in await progress_at(definitions.stores, scope, tail)
        ]
        cut = StreamCut(scope, stream, dict.fromkeys((segment for segment, _, _ in spans), 0))
        ranges = await known_ranges(definitions.stores, cut)
        past = [
            SegmentProgress(segment.segment_id, segment.low, segment.high, is_done=True) for segment in ranges
        ]  # marked done: spans list the remaining parts
        return known.divided(spans, [*past, *followed], orders)

    manifest = await definitions.manifest(definition).put(with_past)
    return [] if manifest is None else manifest.past


async def _orders(
    manager: StreamManager, scope: str, stream: str, known: ShardManifest, spans: Sequence[Span]
) -> dict[int, HistoryOrders]:
    orders = {}
    for segment in {span[0] for span in spans}:
        start = min(span[1] for span in spans if span[0] == segment)
        end = max(span[2] for span in spans if span[0] == segment)
        before = known.segments[segment].order if segment in known.segments else 0
        try:
            name = segment_name(scope, stream, segment)
            arrivals = await arrival_times(stores_of(manager), name, np.array([end - 1], np.int64), end)
        except errors.SegmentNotFoundError:  # truncated meanwhile
            arrivals = np.array([UNKNOWN])
        orders[segment] = HistoryOrders(start, before, end, int(arrivals[0]))
    return orders


async def _spans(
    manager: StreamManager, scope: str, known: ShardManifest, tail: StreamCut, max_bytes: int
) -> list[Span]:
    """Return what isn't indexed before the tail, cut at event boundaries; first, each as one piece, ranges for which
    dead letters may be stored."""
    cuts = manager.cuts(scope, tail.stream)
    if not known.positions():
        return []
    pieces: list[ScanRange] = []
    lettered: list[Span] = []
    for piece in await slices_between(cuts, StreamCut(scope, tail.stream, known.positions()), tail):
        reach = known.segments.get(piece.segment_id)
        start = piece.start if reach is None else max(piece.start, reach.reached)
        if reach is not None and reach.is_done:
            continue
        ends = [item.end for item in known.lettering if reach is not None and item.segment_id == reach.segment_id]
        if (to := max(ends, default=start)) > start:
            lettered.append((piece.segment_id, start, min(to, piece.end)))
            start = to
        if start < piece.end:
            pieces.append(ScanRange(tail.stream, piece.segment_id, start, piece.end))
    total = sum(piece.size_bytes for piece in pieces)
    count = min(max(-(-total // max_bytes), 1), limits.SCAN_SPLITS)
    parts = await split_large(manager, scope, pieces, count, 1)
    return lettered + [(piece.segment_id, piece.start, piece.end) for piece in parts]


async def _index(manager: StreamManager, scope: str, stream: str, span: Span) -> bool:
    definitions = Definitions(manager, scope)
    definition = await definitions.get(stream)
    changes = definitions.manifest(definition)
    known = await changes.get()
    if span not in known.past:
        return False
    origin = known.letters_of(span)
    letters_run = f"from {span[1]}" if origin is None else series_since(origin)
    built = await _built(manager, scope, definition, span, known.orders[span[0]])
    writer, name = dead_letter_writer(manager, scope, definition), new_name()
    async with labelled_shards(manager, scope, definition) as shards:
        try:
            shard = await shards.put_built(name, built)
            if writer is not None:
                await write_dead_letters(writer, scope, stream, built.invalid, {span[0]: letters_run})
            counts = {"indexed": built.docs, "invalid": len(built.invalid)}
            await changes.change(
                lambda newest: newest.filled(span, shard, field_counts=built.field_counts, **counts),
                lambda newest: any(shard is not None and other.id == shard.id for other in newest.shards),
            )
        except PositionConflictError:
            return False
        except IndexNotFoundError:  # deleted meanwhile: the deletion may have listed the shards before this one
            await shards.delete([name])
            raise
        finally:
            if writer is not None:
                writer.close()
    return True


async def _built(
    manager: StreamManager, scope: str, definition: IndexDefinition, span: Span, known: HistoryOrders
) -> BuildResult:
    """Index the events of a span that aren't truncated."""
    segment, start, end = span
    stores, name = stores_of(manager), segment_name(scope, definition.stream, segment)
    blocks = []
    try:
        start = max(start, (await segment_info(stores, name)).start_offset)
        if start < end:
            async with aclosing(read_segment_range(stores, name, start, end, SKIP)) as reading:
                blocks = [block async for block in reading]
    except errors.SegmentNotFoundError:
        blocks = []
    if not blocks:
        return BuildResult()
    offsets = np.concatenate([block.offsets() for block in blocks]).astype(np.int64)
    arrivals, ends = await arrival_ranges(stores, name, offsets, end)
    run = EventRun(segment, blocks, past_micros(known, offsets, arrivals, ends))
    return await REAL.in_thread(build, [run], definition.format, definition.fields)
