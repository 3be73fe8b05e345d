"""The past of a stream indexed by many: parts that anybody indexes who reaches the server, while indexers follow what
comes.

The manifest lists the parts that are left; whoever has a part's shard stored takes the part off and adds the shard, in
one change. So a part that two have done, or that one does again after a kill, is in the index once. The live stream is
followed from the tail at which the past was divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec.structs import replace

from nadi.client.aio import StreamManager
from nadi.client.blocking import manager as blocking
from nadi.client.blocking.face import inside
from nadi.client.manager.streams import stores_of
from nadi.client.places.arrivals import UNKNOWN, came_by, came_within
from nadi.client.places.cuts import slices_between
from nadi.client.reading.boundary import known_ranges
from nadi.client.reading.damage import SKIP
from nadi.client.reading.segment_range import read_segment_range
from nadi.client.scan.connection import Connection, client_of, connection_of
from nadi.client.scan.pieces import Piece, divided
from nadi.client.segments.info import segment_info
from nadi.errors import ContentionError, InvalidArgumentError, SegmentNotFoundError
from nadi.limits import SCAN_SPLITS, SEARCH_BATCH_BYTES
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.process.following import OvertakenError, Reach, check_same, reaches
from nadi.runtime import REAL
from nadi.search.definition import REMADE, Definition, Definitions, IndexNotFoundError
from nadi.search.indexing.indexer import followed_since, letters_of, letters_to, part_from, stored
from nadi.search.labelling import open_labelled
from nadi.search.shards.building import Built, Stretch, build
from nadi.search.shards.manifest import Manifest, PastOrders, Span, new_name, past_micros

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stream's past: pickle it, and have any process `index` it, one of a pool's or of Spark's. It has the
    credentials of the client that made it, if that was given some."""

    connection: Connection
    scope: str
    stream: str
    span: Span

    @property
    def size_bytes(self) -> int:
        """Bytes in the stream, events' headers included."""
        return self.span[2] - self.span[1]

    def index(self) -> bool:
        """Index it, and return whether that was still to be done."""
        client = client_of(self.connection)
        return client.run(_index(client.manager, self.scope, self.stream, self.span))


def past_parts(
    manager: blocking.StreamManager, scope: str, stream: str, *, max_bytes: int = SEARCH_BATCH_BYTES
) -> list[Part]:
    """Divide what of a stream isn't indexed yet, up to its tail, and return the parts. If some are left of an earlier
    call, return those. StreamRemadeError if the stream was made anew since the index was.

    max_bytes: of a part, about; each becomes a shard.
    """
    thread, core = inside(manager)
    if not 0 < max_bytes <= SEARCH_BATCH_BYTES:
        raise InvalidArgumentError(f"a part has 1 to {SEARCH_BATCH_BYTES:,} bytes, not {max_bytes:,}")
    spans = thread.run(_divide(core, scope, stream, max_bytes))
    connection = connection_of(core)
    return [Part(connection, scope, stream, span) for span in spans]


async def _divide(manager: StreamManager, scope: str, stream: str, max_bytes: int) -> list[Span]:
    definitions = Definitions(manager, scope)
    async with definitions.named(stream):
        definition = await definitions.get(stream)
    changes = definitions.manifest(definition)
    for _ in range(_TRIES):
        known = await changes.get()
        if known.past:
            return known.past
        await check_same(stores_of(manager), scope, stream, known.segments, REMADE)
        tail = await manager.cuts(scope, stream).tail()
        spans = await _spans(manager, scope, known, tail, max_bytes)
        if not spans:
            return []
        orders = await _orders(manager, scope, stream, known, spans)
        last = {reach.segment_id: reach.order for reach in known.segments.values()}
        last |= {segment: one.last for segment, one in orders.items()}  # so orders go on behind those of the past
        followed = [
            replace(one, order=last.get(one.segment_id, 0)) for one in await reaches(definitions.stores, scope, tail)
        ]
        found = [*await _ranges(manager, scope, stream, spans), *followed]
        try:
            return (await changes.change(partial(_divided, known, spans, found, orders))).past
        except OvertakenError:
            continue
    raise ContentionError(f"the index of {scope}/{stream}", _TRIES)


def _divided(
    known: Manifest, spans: list[Span], reaches: list[Reach], orders: dict[int, PastOrders], newest: Manifest
) -> Manifest:
    if newest.segments != known.segments or newest.lettering != known.lettering or newest.past:
        raise OvertakenError("indexers have gone on meanwhile")
    return newest.divided(spans, reaches, orders)


async def _orders(
    manager: StreamManager, scope: str, stream: str, known: Manifest, spans: Sequence[Span]
) -> dict[int, PastOrders]:
    found = {}
    for segment in {span[0] for span in spans}:
        start = min(span[1] for span in spans if span[0] == segment)
        end = max(span[2] for span in spans if span[0] == segment)
        before = known.segments[segment].order if segment in known.segments else 0
        try:
            name = segment_name(scope, stream, segment)
            came = await came_by(stores_of(manager), name, np.array([end - 1], np.int64), end)
        except SegmentNotFoundError:  # truncated away meanwhile
            came = np.array([UNKNOWN])
        found[segment] = PastOrders(start, before, end, int(came[0]))
    return found


async def _spans(manager: StreamManager, scope: str, known: Manifest, tail: StreamCut, max_bytes: int) -> list[Span]:
    """What isn't indexed before the tail, cut at event boundaries: first, in one piece, that of a segment of which dead
    letters may be there."""
    cuts = manager.cuts(scope, tail.stream)
    if not known.positions():
        return []
    pieces: list[Piece] = []
    lettered: list[Span] = []
    for one in await slices_between(cuts, StreamCut(scope, tail.stream, known.positions()), tail):
        reach = known.segments.get(one.segment_id)
        start = one.start if reach is None else max(one.start, reach.reached)
        if reach is not None and reach.is_done:
            continue
        ends = [it.end for it in known.lettering if reach is not None and it.segment_id == reach.segment_id]
        if (to := max(ends, default=start)) > start:
            lettered.append((one.segment_id, start, min(to, one.end)))
            start = to
        if start < one.end:
            pieces.append(Piece(tail.stream, one.segment_id, start, one.end))
    total = sum(piece.size_bytes for piece in pieces)
    count = min(max(-(-total // max_bytes), 1), SCAN_SPLITS)
    parts = await divided(manager, scope, pieces, count, 1)
    return lettered + [(one.segment_id, one.start, one.end) for one in parts]


async def _ranges(manager: StreamManager, scope: str, stream: str, spans: Iterable[Span]) -> list[Reach]:
    """The segments of spans, as far as they are known, as done: the spans say what is left of them."""
    cut = StreamCut(scope, stream, dict.fromkeys((segment for segment, _, _ in spans), 0))
    found = await known_ranges(stores_of(manager), cut)
    return [Reach(one.segment_id, one.low, one.high, is_done=True) for one in found]


async def _index(manager: StreamManager, scope: str, stream: str, span: Span) -> bool:
    definitions = Definitions(manager, scope)
    definition = await definitions.get(stream)
    changes = definitions.manifest(definition)
    known = await changes.get()
    if span not in known.past:
        return False
    origin = known.letters_of(span)
    run = part_from(span[1]) if origin is None else followed_since(origin)
    built = await _built(manager, scope, definition, span, known.orders[span[0]])
    letters = letters_to(manager, scope, definition)
    shards, name = await open_labelled(manager, scope, definition), new_name()
    try:
        shard = await stored(shards, built, name)
        if letters is not None:
            await letters.set_aside(letters_of(built.unfit, scope, stream), {span[0]: run})
        counts = {"indexed": built.docs, "unfit": len(built.unfit)}
        await changes.change(
            lambda newest: newest.filled(span, shard, having=built.having, **counts),
            lambda newest: any(shard is not None and one.id == shard.id for one in newest.shards),
        )
    except OvertakenError:
        return False
    except IndexNotFoundError:  # dropped meanwhile, by one who may have looked before the shard was there
        await shards.delete([name])
        raise
    finally:
        if letters is not None:
            letters.close()
        await shards.close()
    return True


async def _built(manager: StreamManager, scope: str, definition: Definition, span: Span, orders: PastOrders) -> Built:
    """Of what is left of it in the stream."""
    segment, start, end = span
    stores, name = stores_of(manager), segment_name(scope, definition.stream, segment)
    try:
        start = max(start, (await segment_info(stores, name)).start_offset)
        if start >= end:
            return Built()
        async with aclosing(read_segment_range(stores, name, start, end, SKIP)) as reading:
            blocks = [block async for block in reading]
    except SegmentNotFoundError:
        return Built()
    if not blocks:
        return Built()
    offsets = np.concatenate([block.offsets() for block in blocks]).astype(np.int64)
    came, ends = await came_within(stores, name, offsets, end)
    stretch = Stretch(segment, blocks, came, 0, past_micros(orders, offsets, came, ends))
    return await REAL.in_thread(build, [stretch], definition.format, definition.fields)
