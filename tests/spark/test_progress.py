"""Streaming queries over random streams, planned by the production code, compared with a plain model.

NADI_STREAM_EXAMPLES is their number (default 500); NADI_STREAM_SEED is the first one's seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar, cast

import pytest

from nadi.client.segments.info import SegmentInfo
from nadi.client.stream_cuts.cuts import SegmentSlice
from nadi.errors import EpochExpiredError, InvalidStreamCutError, SegmentTruncatedError
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.spark.reading.admission import Capacity
from nadi.spark.reading.offsets import Offset
from nadi.spark.reading.progress import QueryProgress, StreamView
from tests.model.random_stream import RandomStream, Written, check_order

EXAMPLES = int(os.environ.get("NADI_STREAM_EXAMPLES", "500"))
SEED = int(os.environ.get("NADI_STREAM_SEED", "0"))
_Result = TypeVar("_Result")


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine without a loop: nothing here waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast("_Result", done.value)
    raise AssertionError("planning waits for something")


class Ends:
    """The ends of a random stream's segments; `asked` counts requests, and sequential rounds of them."""

    def __init__(self, stream: RandomStream) -> None:
        self.stream = stream

    async def infos(self, offsets: Mapping[int, int]) -> dict[int, SegmentInfo]:
        stream = self.stream
        gone = [segment for segment in offsets if stream.is_gone(segment)]
        if gone:
            raise SegmentTruncatedError(segment_name("sc", "st", gone[0]))
        return {s: SegmentInfo(stream.starts[s], stream.lengths[s], s in stream.sealed) for s in offsets}

    async def successors(self, segments: Iterable[int]) -> dict[int, list[SegmentRange]]:
        return {segment: self.stream.successors(segment) for segment in segments}


class View(StreamView):
    """A planner's view of a random stream. forgets: epochs that the head doesn't need are forgotten."""

    def __init__(self, stream: RandomStream, forgets: bool) -> None:
        self.forgets = forgets
        self.scope, self.stream = "sc", "st"
        self.random = stream
        self.ends = cast("Any", Ends(stream))

    async def ranges(self, cut: StreamCut) -> list[SegmentRange]:
        self._check_known(cut)
        return [self.random.range_of(segment) for segment in cut.positions]

    async def known_ranges(self, cut: StreamCut) -> list[SegmentRange]:
        return [self.random.range_of(segment) for segment in cut.positions if not self._is_forgotten(segment)]

    def _is_forgotten(self, segment: int) -> bool:
        history = self.random.history
        first = min(history.span(self.random.head).values())
        return self.forgets and history.sealed_in.get(segment, first + 1) <= first

    def _check_known(self, cut: StreamCut) -> None:
        if any(map(self._is_forgotten, cut.positions)):
            raise EpochExpiredError("it is forgotten")

    def learn(self, pieces: Iterable[SegmentRange]) -> None:
        pass

    async def check(self, cut: StreamCut) -> None:
        self._check_known(cut)
        if not self.random.history.is_valid_cut(cut.positions):
            raise InvalidStreamCutError(f"{cut} is not legal")

    async def head(self) -> StreamCut:
        return StreamCut("sc", "st", self.random.head)

    async def cut_short(self, given: Mapping[SegmentSlice, int]) -> list[SegmentSlice]:
        found = []
        for piece, size in given.items():
            ends = [e.end for e in self.random.segments[piece.segment_id] if piece.start < e.end <= piece.start + size]
            found.append(SegmentSlice(piece.segment_id, piece.start, max(ends, default=piece.start)))
        return found

    async def take(self, piece: SegmentSlice, events: int) -> tuple[int, SegmentSlice]:
        ends = [e.end for e in self.random.segments[piece.segment_id] if piece.start < e.end <= piece.end][:events]
        return len(ends), SegmentSlice(piece.segment_id, piece.start, max(ends, default=piece.start))


class Query:
    """One query's life: its checkpoint, and the events of each batch."""

    def __init__(
        self, stream: RandomStream, start: Mapping[int, int], end: Mapping[int, int] | None, skips: bool, forgets: bool
    ) -> None:
        self.stream, self.end, self.skips, self.forgets = stream, end, skips, forgets
        self.offsets = [Offset.from_json(Offset(StreamCut("sc", "st", start)).to_json())]
        self.batches: list[list[Written]] = []
        self.skipped: list[tuple[StreamCut, StreamCut]] = []
        self.start_anew()

    def start_anew(self) -> None:
        self.progress = QueryProgress(View(self.stream, self.forgets), skip_truncated=self.skips)
        if self.end is not None:
            run(self.progress.limit_to("end", StreamCut("sc", "st", self.end)))

    def trigger(self, max_bytes: int | None) -> bool:
        """Run one batch; return False if there is nothing to read."""
        start = self.offsets[-1]
        end = run(self.progress.next(start, Capacity() if max_bytes is None else self.capacity(max_bytes)))
        if end == start:
            return False
        assert end.cut != start.cut
        assert self.stream.history.is_valid_cut(end.cut.positions), f"{end.cut} is not legal"
        end = Offset.from_json(end.to_json())
        begin = end.skipped_to or start.cut
        if end.skipped_to is not None:
            self.skipped.append((start.cut, end.skipped_to))
        for segment, offset in end.cut.positions.items():
            assert offset == -1 or offset in (0, *(e.end for e in self.stream.segments[segment]))
        assert self.stream.history.is_at_or_after(end.cut.positions, begin.positions)
        self.offsets.append(end)
        self.batches.append(self.read(start, end))
        return True

    def capacity(self, size: int) -> Capacity:
        """Return a limit by bytes, by events, or both."""
        few = max(1, size // 20)
        return self.stream.chance.choice(
            [Capacity(size), Capacity(None, few), Capacity(size, 5, 50), Capacity(None, None, size)]
        )

    def read(self, start: Offset, end: Offset) -> list[Written]:
        """Return the tasks' events, in any order of tasks."""
        found: list[Written] = []
        homes: dict[float, int] = {}
        slices = run(self.progress.slices(start, end))
        self.stream.chance.shuffle(slices)
        for piece in slices:
            assert not self.stream.is_gone(piece.segment_id)
            assert piece.start >= self.stream.starts[piece.segment_id]
            for event in self.stream.in_slice(piece.segment_id, piece.start, piece.end):
                assert homes.setdefault(event.key, piece.segment_id) == piece.segment_id, "two tasks have one key"
                found.append(event)
        return found

    def restart(self, at: int) -> None:
        """Restart at any offset of the checkpoint; the batch planned there has the same events again."""
        self.start_anew()
        if at < len(self.batches) and not self.skips:
            again = self.read(self.offsets[at], self.offsets[at + 1])
            assert sorted(again, key=str) == sorted(self.batches[at], key=str), "a batch run again gives other events"
        del self.offsets[at + 1 :], self.batches[at:]

    def given(self) -> list[Written]:
        return [event for batch in self.batches for event in batch]

    def run_to_its_end(self, limits: list[int | None]) -> None:
        for _ in range(3 * (len(self.stream.events()) + len(self.stream.segments)) + 20):
            if not self.trigger(self.stream.chance.choice(limits)):
                return
        raise AssertionError("the query never ends")


def play(seed: int) -> None:
    """Run a stream and a query of it."""
    chance = random.Random(seed)
    stream = RandomStream(chance)
    truncates = chance.random() < 0.25
    for _ in range(chance.choice([0, 4, 8, 16])):
        stream.live()
    start = stream.head if chance.random() < 0.7 else stream.somewhere()
    limits: list[int | None] = chance.choice([[None], [30], [200], [500], [None, 1, 30, 200, 1000]])
    query = Query(stream, start, None, truncates, forgets=seed % 2 == 0)
    if chance.random() < 0.3:
        for _ in range(chance.randint(0, 6)):
            stream.live()
        query.end = stream.tail() if chance.random() < 0.4 else stream.somewhere()
        query.start_anew()
    for _ in range(chance.randint(0, 6)):
        for _ in range(chance.randint(0, 4)):
            stream.live()
        if truncates and chance.random() < 0.3:
            cut = chance.choice([stream.tail(), stream.somewhere(), query.offsets[-1].cut.positions])
            if stream.history.is_at_or_after(cut, stream.head):
                stream.truncate(cut)
        what = chance.random()
        if what < 0.6:
            query.trigger(chance.choice(limits))
        elif what < 0.8 and not truncates:
            query.restart(chance.randrange(len(query.offsets)))
        else:
            tail = stream.tail()
            already = set(query.given())  # while a scaling is under way, an open-ended trigger may be ahead of the tail
            query.start_anew()
            run(query.progress.limit_to("now", StreamCut("sc", "st", tail)))
            query.run_to_its_end(limits)
            wanted = [e for e in stream.events() if stream.is_before(e, tail) or e in already]
            check_all(stream, query, wanted)
            query.start_anew()
    stream.seal_all()
    query.run_to_its_end(limits)
    check_all(stream, query, stream.events())


def check_all(stream: RandomStream, query: Query, wanted: list[Written]) -> None:
    """Check that each event occurs once, in order of its key, except those before the query's start, after its end, or
    reported as truncated."""
    given = query.given()
    check_order(given)
    start = query.offsets[0].cut.positions
    expected = {
        event
        for event in wanted
        if not stream.is_before(event, start) and (query.end is None or stream.is_before(event, query.end))
    }
    left_out = expected.difference(given)
    for event in left_out:
        assert any(
            stream.is_before(event, to.positions) and not stream.is_before(event, since.positions)
            for since, to in query.skipped
        ), f"{event} was left out"
    if not query.skipped:
        assert not left_out
    assert expected.issuperset(given)


@pytest.mark.timeout(60 + EXAMPLES // 20)
def test_random_query_reads_each_event_once_in_order() -> None:
    for seed in range(SEED, SEED + EXAMPLES):
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
