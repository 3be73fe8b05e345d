"""Asks an index: hits with their events, counts, and whether it has come as far as a cut."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cachetools import LRUCache

from nadi.client.aio import StreamManager
from nadi.client.control.arguments import checked, several_texts
from nadi.client.control.closing import Closing
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import check_cut
from nadi.client.reading.segment_range import read_segment_range
from nadi.client.segments.stores import SegmentStores
from nadi.display import Displayed
from nadi.errors import InvalidArgumentError, RequestTimeoutError, SegmentNotFoundError, TruncatedError
from nadi.limits import SEARCH_BEST_HITS, SEARCH_BUCKETS, SEARCH_HITS, SEARCH_HITS_AT_ONCE, SEARCH_KEPT, SEARCH_LOOK_S
from nadi.model.frontier import Bound as CutBound
from nadi.model.segments import share_keys
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch, segment_name
from nadi.process.following import check_same
from nadi.search.analysis import OFFSET, ORDER, ORDER_BITS, SEGMENT, SIZE, check_installed, name_of, schema_of
from nadi.search.asking.excerpts import Excerpt, Words
from nadi.search.asking.local import LocalIndex, Opened
from nadi.search.asking.pages import After, Placed, after_of, fitting
from nadi.search.definition import REMADE, Definition, Definitions
from nadi.search.fields import TIMES, Field, UnfitError, number_of, reader_of
from nadi.search.query.bound import Bound, bind, translated, within
from nadi.search.query.parser import check_text, parse
from nadi.search.shards.manifest import Manifest, unfinished

if TYPE_CHECKING:
    from tantivy import DocAddress, Query, Searcher


_LARGEST = (1 << 63) - 1


def listed(
    searcher: Searcher, asked: Query, fields: tuple[Field, ...], most: int, after: After | None, newest: bool
) -> tuple[list[Placed], int]:
    """The newest, or the oldest, behind where a page ended; and how many there are on all pages.

    Few events have the same order, if any, and those are listed by their places.
    """
    from tantivy import Order

    count = searcher.search(asked, 1).count
    found: list[Placed] = []
    low, high = 0, _LARGEST
    if after is not None:
        same = _same(searcher, asked, fields, after.order, newest)
        place = (after.segment, after.offset)
        found = [one for one in same if (one.place < place if newest else one.place > place)][:most]
        low, high = (0, after.order - 1) if newest else (after.order + 1, _LARGEST)
    left = most - len(found)
    if left and low <= high:
        rest = asked if after is None else _within(asked, fields, low, high)
        direction = Order.Desc if newest else Order.Asc
        hits = searcher.search(rest, left, count=False, order_by_field=ORDER, order=direction).hits
        some = _placed(searcher, [address for _, address in hits])
        if len(some) == left:  # the last may be some of those with one order
            last = some[-1].order
            some = [one for one in some if one.order != last] + _same(searcher, asked, fields, last, newest)
        found += sorted(some, reverse=newest)[:left]
    return found, count


def best(searcher: Searcher, asked: Query, most: int, after: After | None) -> tuple[list[tuple[Placed, float]], int]:
    """`most` of the hits that fit best, the newest first of those that do so alike, behind where a page ended; and how
    many fit.

    Where the index has changed meanwhile, so may have the scores: they go on behind the event that was the last.
    """
    result = searcher.search(asked, SEARCH_BEST_HITS)
    addresses = [address for _, address in result.hits]
    orders = searcher.fast_field_values(ORDER, addresses) if addresses else []
    ranked = sorted(
        (-round(float(score), 4), -int(order), number)
        for number, ((score, _), order) in enumerate(zip(result.hits, orders, strict=True))
    )

    def placed(low: int, high: int) -> list[tuple[Placed, float]]:
        """With all that share score and order with the first or the last of these, which are ranked by their places."""
        low = bisect_left(ranked, ranked[low][:2]) if low < len(ranked) else low
        high = bisect_left(ranked, (ranked[high - 1][0], ranked[high - 1][1] + 1)) if high > low else low
        some = _placed(searcher, [addresses[number] for _, _, number in ranked[low:high]])
        return sorted(zip(some, [-score for score, _, _ in ranked[low:high]], strict=True), key=_rank)

    if after is None:
        return placed(0, min(most, len(ranked)))[:most], result.count
    last = _rank((Placed(after.order, after.segment, after.offset, 0), after.score))
    alike = {rank[:2]: number for number, rank in enumerate(ranked) if -rank[1] == after.order}
    for number in alike.values():
        for one in placed(number, number + 1):
            if one[0].place == (after.segment, after.offset):
                last = _rank(one)
    low = bisect_left(ranked, last[:2])
    shown = bisect_left(ranked, (last[0], last[1] + 1)) - low  # at most: those alike
    found = [one for one in placed(low, min(low + shown + most, len(ranked))) if _rank(one) > last]
    return found[:most], result.count


def _rank(one: tuple[Placed, float]) -> tuple[float, int, int, int]:
    placed, score = one
    return -score, -placed.order, -placed.segment, -placed.offset


def _same(searcher: Searcher, asked: Query, fields: tuple[Field, ...], order: int, newest: bool) -> list[Placed]:
    """All with that order, by their places; as a segment has them, or the other way round."""
    hits = searcher.search(_within(asked, fields, order, order), SEARCH_BUCKETS, count=False).hits
    return sorted(_placed(searcher, [address for _, address in hits]), reverse=newest)


def _within(asked: Query, fields: tuple[Field, ...], low: int, high: int) -> Query:
    from tantivy import FieldType, Occur, Query

    orders = Query.range_query(schema_of(fields), ORDER, FieldType.Unsigned, low, high)
    return Query.boolean_query([(Occur.Must, asked), (Occur.Must, Query.const_score_query(orders, 0.0))])


def _placed(searcher: Searcher, addresses: Sequence[DocAddress]) -> list[Placed]:
    if not addresses:
        return []
    columns = [searcher.fast_field_values(name, list(addresses)) for name in (ORDER, SEGMENT, OFFSET, SIZE)]
    return [
        Placed(int(order), int(segment), int(offset), int(offset) + int(size))
        for order, segment, offset, size in zip(*columns, strict=True)
    ]


Place = tuple[int, int, int]  # segment, offset, and where the event ends


async def events_at(stores: SegmentStores, scope: str, stream: str, places: Sequence[Place]) -> list[bytes | None]:
    """Each event; None for one that was truncated away meanwhile."""
    turns = asyncio.Semaphore(SEARCH_HITS_AT_ONCE)

    async def event(place: Place) -> bytes | None:
        segment, offset, end = place
        async with turns:
            try:
                blocks = read_segment_range(stores, segment_name(scope, stream, segment), offset, end)
                found = [data async for block in blocks for data in block.events()]
            except (TruncatedError, SegmentNotFoundError):
                return None
            assert len(found) == 1, f"{len(found)} events where one was indexed"
            return found[0]

    return list(await asyncio.gather(*map(event, places)))


CAME = "_came"
_US = 1_000_000
_ALL = (1 << 32) - 1  # values of a segment of tantivy


def counted(
    searcher: Searcher,
    asked: Query,
    fields: tuple[Field, ...],
    by: str | None,
    interval_s: float | None,
    limit: int,
) -> dict[Any, int]:
    """How many there are, by `by`: of a keyword, a bool or a long the most frequent values; of a date, or of `_came`,
    when they came, by intervals, each named by when it begins, those without any left out; of a number by intervals."""
    if by is None:
        if interval_s is not None:
            raise InvalidArgumentError("an interval is of times: say of which field, or of _came, by which it counts")
        return {"all": searcher.search(asked, 1).count}
    if not isinstance(limit, int) or not 0 < limit <= SEARCH_BUCKETS:
        raise InvalidArgumentError(f"a count has 1 to {SEARCH_BUCKETS:,} buckets, not {limit}")
    found = None if by == CAME else number_of(fields, by)
    if found is None and by != CAME:
        raise InvalidArgumentError(f"the index has no field {by[:60]!r} to count by: {CAME} is when events came")
    name, kind, unit = ORDER, "date", _US << ORDER_BITS
    if found is not None:
        name, kind, unit = name_of(found), fields[found].kind, _US
    if kind in ("text", "facet"):
        raise InvalidArgumentError(f"{by} is a {kind}: counts are by keywords, bools, numbers and times")
    if kind in TIMES and interval_s is None:
        raise InvalidArgumentError(f"{by} is a time: say by which interval it counts")
    if interval_s is None:
        return _by_value(searcher, asked, name, kind, limit)
    if kind in ("keyword", "bool") or not 0 < interval_s < math.inf:
        raise InvalidArgumentError(
            f"an interval is a finite number above 0, of a time or a number: not {interval_s} of {by}"
        )
    return _by_interval(searcher, asked, name, kind, interval_s, unit)


def _by_value(searcher: Searcher, asked: Query, name: str, kind: str, limit: int) -> dict[Any, int]:
    """Of each segment of tantivy's all values are taken: the most frequent of all may be rare in each."""
    terms = {"terms": {"field": name, "size": limit, "segment_size": _ALL}}
    buckets = _buckets(searcher, asked, terms, "ask for fewer events")
    made = {"bool": bool, "long": int, "double": float, "keyword": str}[kind]
    return {made(bucket["key"]): bucket["doc_count"] for bucket in buckets}


def _by_interval(searcher: Searcher, asked: Query, name: str, kind: str, interval: float, unit: int) -> dict[Any, int]:
    step = float(interval * unit) if kind in TIMES else float(interval)
    histogram = {"histogram": {"field": name, "interval": step, "min_doc_count": 1}}
    buckets = _buckets(searcher, asked, histogram, "take a longer interval")
    if len(buckets) > SEARCH_BUCKETS:
        raise InvalidArgumentError(
            f"the count has {len(buckets):,} buckets, and {SEARCH_BUCKETS:,} are the most: take a longer interval"
        )
    if kind not in TIMES:
        return {bucket["key"]: bucket["doc_count"] for bucket in buckets}
    counts: dict[Any, int] = {}
    for bucket in buckets:
        begins = _moment(bucket["key"] / unit)
        counts[begins] = counts.get(begins, 0) + bucket["doc_count"]
    return counts


def _buckets(searcher: Searcher, asked: Query, what: dict[str, Any], hint: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = searcher.aggregate(asked, {"by": what})["by"]["buckets"]
    except ValueError as error:  # it is given so much memory
        raise InvalidArgumentError(f"the count has too many buckets: {hint} ({error})") from error
    return found


def _moment(seconds: float) -> datetime:
    """A bucket may begin before the first datetime there is, though its events don't."""
    low, high = ((one.replace(tzinfo=UTC) - _EPOCH).total_seconds() for one in (datetime.min, datetime.max))
    if not low < seconds < high:
        return (datetime.min if seconds <= low else datetime.max).replace(tzinfo=UTC)
    return _EPOCH + timedelta(microseconds=round(seconds * _US))


Ordering = Literal["newest", "oldest", "best"]
_ORDERINGS = ("newest", "oldest", "best")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Hit(Displayed):
    """An event that was found. segment_id, offset: where it is; came: when the server took it, at the latest, in the
    order in which the newest are listed. score: of the best, how well it fits. excerpt: of the text with most of the
    query's words."""

    data: bytes
    segment_id: int
    offset: int
    came: datetime
    score: float | None = None
    excerpt: Excerpt | None = None


@dataclass(frozen=True, slots=True)
class Page(Displayed):
    """count: of all that fit. next: with which the next page begins; None on the last one."""

    hits: tuple[Hit, ...]
    count: int
    next: str | None


@dataclass(frozen=True, slots=True)
class _Question:
    bound: Bound
    since: StreamCut | None
    until: StreamCut | None
    keys: tuple[str, ...] | None


@checked()
class Search(Closing):
    """Queries of one stream's index; `search_of` makes one."""

    def __init__(
        self, manager: StreamManager, definitions: Definitions, definition: Definition, local: LocalIndex
    ) -> None:
        self.definition = definition
        self._manager, self._definitions, self._local = manager, definitions, local
        self._stores = stores_of(manager)
        self._scope, self._stream = definitions.scope, definition.stream
        self._cuts = manager.cuts(self._scope, self._stream)
        self._kept: LRUCache[int, Opened] = LRUCache(SEARCH_KEPT)  # for further pages of the best, by generation

    async def query(
        self,
        text: str = "",
        *,
        order: Ordering = "newest",
        limit: int = 20,
        after: str | None = None,
        since: StreamCut | str | None = None,
        until: StreamCut | str | None = None,
        keys: Sequence[str] | None = None,
        wait_for: StreamCut | str | None = None,
        timeout: float = 30.0,
    ) -> Page:
        """A page of the events that fit a query: the newest first, the oldest, or the best.

        after: the `next` of the page before. since, until: count events from one cut up to another only, each a cut
        or what `StreamCuts.named` makes one of. keys: only segments that have these routing keys, which may
        have others, too. wait_for: answer once all that lies before that cut is indexed; RequestTimeoutError after
        `timeout` seconds.
        """
        self._local.check_open()
        if order not in _ORDERINGS:
            raise InvalidArgumentError(f"hits are listed {', '.join(_ORDERINGS)} first, not {order!r}")
        if not isinstance(limit, int) or not 0 < limit <= SEARCH_HITS:
            raise InvalidArgumentError(f"a page has 1 to {SEARCH_HITS:,} hits, not {limit}")
        digest = _digest(text, order, since, until, keys)
        begin = None if after is None else after_of(after, digest)
        if order == "best" and until is None and parse(text).until is None:
            until = await self._as_of(begin)
        question = await self._question(text, since, until, keys)
        await self.wait(wait_for, timeout)
        opened = self._kept.get(begin.generation) if begin is not None and order == "best" else None
        opened = opened or await self._local.newest()
        asked = await self._asked(question, opened.manifest)
        if order == "best":
            return await self._best(question, opened, asked, limit, begin, digest)
        return await self._listed(question, opened, asked, limit, begin, digest, newest=order == "newest")

    async def count(
        self,
        text: str = "",
        *,
        by: str | None = None,
        interval_s: int | float | None = None,
        limit: int = 20,
        since: StreamCut | str | None = None,
        until: StreamCut | str | None = None,
        keys: Sequence[str] | None = None,
        wait_for: StreamCut | str | None = None,
        timeout: float = 30.0,
    ) -> dict[Any, int]:
        """How many events fit a query: all of them, as `{"all": …}`, or by a field, see `counting.counted`.

        since, until, keys, wait_for, timeout: as in `query`.
        """
        self._local.check_open()
        question = await self._question(text, since, until, keys)
        await self.wait(wait_for, timeout)
        opened = await self._local.newest()
        asked = await self._asked(question, opened.manifest)
        return await asyncio.to_thread(counted, opened.searcher, asked, self.definition.fields, by, interval_s, limit)

    async def wait(self, cut: StreamCut | str | None, timeout: float = 30.0) -> None:
        """Return once all that lies before a cut is indexed; RequestTimeoutError after `timeout` seconds."""
        if (given := await self._cut(cut)) is None:
            return
        until = time.monotonic() + timeout
        limits = await self._limits(given)
        manifest = await self._definitions.manifest(self.definition).get()
        await self._check_same(given, manifest)
        while True:
            found = {reach.segment_id: limits.limit(reach.range) for reach in manifest.segments.values()}
            if not any(True for _ in unfinished(manifest, found)):
                return
            if time.monotonic() >= until:
                raise RequestTimeoutError(
                    f"the index of {self._scope}/{self._stream} didn't come as far as the cut within {timeout:g} s: "
                    "see with `nadi search status` whether an indexer runs"
                )
            await asyncio.sleep(min(SEARCH_LOOK_S, max(until - time.monotonic(), 0.0)))
            manifest = await self._definitions.manifest(self.definition).get()

    async def reached(self) -> StreamCut:
        """The cut before which everything is indexed."""
        manifest = await self._definitions.manifest(self.definition).get()
        return StreamCut(self._scope, self._stream, manifest.positions())

    async def hit_cut(self, hit: Hit) -> StreamCut:
        """A cut that stands at a hit's event, and at the start of the segments that had the other keys then, or of what
        is left of these keys."""
        epoch = segment_epoch(hit.segment_id)
        beside = await self._stores.controller.epoch_segments(self._scope, self._stream, epoch)
        head = await self._cuts.head()
        ranges = [one for one in await self._definitions.ranges(head) if one.segment_id != hit.segment_id]
        positions = {hit.segment_id: hit.offset}
        for one in beside:
            if one.segment_id == hit.segment_id:
                continue
            later = [left for left in ranges if left.segment_id >= one.segment_id and share_keys(left, one)]
            if later and later[0].segment_id != one.segment_id:
                positions |= {left.segment_id: head.positions[left.segment_id] for left in later}
            elif later:
                positions[one.segment_id] = max(head.positions[one.segment_id], 0)
            else:
                positions[one.segment_id] = 0
        return StreamCut(self._scope, self._stream, positions)

    def close(self) -> None:
        """Let go of its files."""
        self._kept.clear()
        self._local.close()

    async def discard(self) -> None:
        """Remove what this machine has of an index that was dropped."""
        self.close()
        await self._local.discard()

    # --- what is asked ------------------------------------------------------------------------

    async def _as_of(self, begin: After | None) -> StreamCut | None:
        """The cut as of which the best are listed; None where all of a sealed stream is indexed."""
        if begin is not None:
            found = StreamCut.from_text(begin.as_of) if begin.as_of else None
            check_cut(found, self._scope, self._stream)
            return found
        reached = await self.reached()
        return reached if reached.positions else None

    async def _question(
        self,
        text: str,
        since: StreamCut | str | None,
        until: StreamCut | str | None,
        keys: Sequence[str] | None,
    ) -> _Question:
        parsed = parse(text)
        for name, given, said in (("since", since, parsed.since), ("until", until, parsed.until)):
            if given is not None and said is not None:
                raise InvalidArgumentError(f"the query says _{name}: already: leave one out")
        found = tuple(several_texts(keys, "routing keys")) if keys is not None else None
        for key in found or ():
            check_text(key, "a routing key")
        return _Question(
            bind(parsed.node, self.definition.fields),
            await self._cut(since if since is not None else parsed.since),
            await self._cut(until if until is not None else parsed.until, end=True),
            found,
        )

    async def _cut(self, given: StreamCut | str | None, *, end: bool = False) -> StreamCut | None:
        if isinstance(given, str):
            check_text(given, "a place")
            return await self._cuts.named(given, end=end)
        check_cut(given, self._scope, self._stream)
        return given

    async def _asked(self, question: _Question, manifest: Manifest) -> Query:
        """The question to tantivy: what fits, less what lies outside of the bounds, or before the stream's head."""
        head = await self._cuts.head()
        await self._check_same(head, manifest)
        lows = [await self._limits(cut) for cut in (head, question.since) if cut is not None]
        high = None if question.until is None else await self._limits(question.until)
        fields = self.definition.fields
        return within(translated(question.bound, fields), fields, manifest, lows, high, question.keys)

    async def _check_same(self, cut: StreamCut, manifest: Manifest) -> None:
        """StreamRemadeError, if the index is that of an earlier stream of that name; which has none of the segments."""
        if not cut.positions.keys() & manifest.segments.keys():
            await check_same(self._stores, self._scope, self._stream, manifest.segments, REMADE)

    async def _limits(self, cut: StreamCut) -> CutBound:
        return CutBound(cut.positions, await self._definitions.ranges(cut))

    # --- answers ------------------------------------------------------------------------------

    async def _listed(
        self,
        question: _Question,
        opened: Opened,
        asked: Query,
        limit: int,
        begin: After | None,
        digest: str,
        *,
        newest: bool,
    ) -> Page:
        found, count = await asyncio.to_thread(
            listed, opened.searcher, asked, self.definition.fields, limit + 1, begin, newest
        )
        placed: list[tuple[Placed, float | None]] = [(one, None) for one in found[:limit]]
        shown = fitting(placed)
        hits = await self._hits(question, shown)
        last = shown[-1][0] if len(found) > len(shown) else None
        told = None if last is None else After(digest, last.order, last.segment, last.offset).as_text()
        return Page(tuple(hits), count, told)

    async def _best(
        self, question: _Question, opened: Opened, asked: Query, limit: int, begin: After | None, digest: str
    ) -> Page:
        found, count = await asyncio.to_thread(best, opened.searcher, asked, limit + 1, begin)
        shown = fitting(found[:limit])
        hits = await self._hits(question, shown)
        if len(found) == len(shown):
            return Page(tuple(hits), count, None)
        as_of = "" if question.until is None else question.until.as_text()
        generation = opened.manifest.generation
        self._kept[generation] = opened
        last, score = shown[-1]
        told = After(digest, last.order, last.segment, last.offset, score or 0.0, as_of, generation)
        return Page(tuple(hits), count, told.as_text())

    async def _hits(self, question: _Question, found: Sequence[tuple[Placed, float | None]]) -> list[Hit]:
        """With their events; those that were truncated away meanwhile left out."""
        places = [(one.segment, one.offset, one.end) for one, _ in found]
        events = await events_at(self._stores, self._scope, self._stream, places)

        def made() -> list[Hit]:
            return [
                Hit(data, one.segment, one.offset, _came(one.order), score, self._excerpt(question.bound, data))
                for (one, score), data in zip(found, events, strict=True)
                if data is not None
            ]

        return await asyncio.to_thread(made)

    def _excerpt(self, bound: Bound, data: bytes) -> Excerpt | None:
        """Of the first text that has one of the words, or of the first text."""
        fields = self.definition.fields
        try:
            values = reader_of(self.definition.format, fields)(data)
        except UnfitError:
            return None
        made = [Words(bound, number).excerpt(str(value)) for number, value in values if fields[number].kind == "text"]
        return next((one for one in made if one.found), made[0] if made else None)


def search_of(
    manager: StreamManager, definitions: Definitions, definition: Definition, cache: str | Path | None = None
) -> Search:
    """What queries that index; nothing is asked yet. cache: the folder for its shards, see `local.cache_folder`."""
    check_installed()
    local = LocalIndex(definitions, definition, None if cache is None else Path(cache))
    return Search(manager, definitions, definition, local)


def _digest(*asked: object) -> str:
    return hashlib.blake2b(repr([str(one) for one in asked]).encode(), digest_size=9).hexdigest()


def _came(order: int) -> datetime:
    return _EPOCH + timedelta(microseconds=order >> ORDER_BITS)
