"""Searches an index: hits with events and excerpts, counts, and waiting until the index reaches a cut."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cachetools import LRUCache
from msgspec.structs import replace

from nadi.client.control.arguments import check_strings, checked
from nadi.client.control.closing import Closing
from nadi.client.reading.boundary import check_cut
from nadi.client.reading.segment_range import read_segment_range
from nadi.display import Displayed
from nadi.errors import InvalidArgumentError, RequestTimeoutError, SegmentNotFoundError, TruncatedError
from nadi.limits import SEARCH_HITS, SEARCH_HITS_AT_ONCE, SEARCH_POLL_S, SEARCH_SNIPPET_CHARS, SEARCH_VERSIONS_CACHED
from nadi.model.frontier import Bound as CutBound
from nadi.model.segments import share_keys
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch, segment_name
from nadi.process.segment_follower import check_same
from nadi.search.definition import REMADE, Definitions, IndexDefinition
from nadi.search.fields import InvalidEventError, analyzer, check_installed, reader_of
from nadi.search.query.bound import Bound, Close, Follow, Has, Starts, bind, leaves, translated, within
from nadi.search.query.parser import check_text, parse
from nadi.search.searching.pages import HitPosition, PageCursor, after_of, best, counted, fitting, listed
from nadi.search.searching.shard_cache import LocalIndex, OpenShards
from nadi.search.shards.manifest import ShardManifest, has_all

if TYPE_CHECKING:
    from tantivy import Query


@dataclass(frozen=True, slots=True)
class Excerpt(Displayed):
    """Part of a text. matches: the ranges in `text` of the query's words."""

    text: str
    matches: tuple[tuple[int, int], ...]

    def highlighted(self, before: str, after: str) -> str:
        """Return the text with strings before and after each word found.

        >>> Excerpt("no error here", ((3, 8),)).highlighted("*", "*")
        'no *error* here'
        """
        pieces, at = [], 0
        for start, end in self.matches:
            pieces += [self.text[at:start], before, self.text[start:end], after]
            at = end
        return "".join([*pieces, self.text[at:]])


class Words:
    """The words of a field that a query requires, without excluded ones."""

    def __init__(self, bound: Bound, field: int) -> None:
        own = [leaf for leaf in leaves(bound, excluded=False) if leaf.field == field]
        self._words = {leaf.value for leaf in own if isinstance(leaf, Has)}
        self._words |= {word for leaf in own if isinstance(leaf, Follow | Close) for word in leaf.words}
        self._prefixes = tuple(leaf.prefix for leaf in own if isinstance(leaf, Starts))

    def excerpt(self, text: str) -> Excerpt:
        """Return the best part of a text, or its start if it has none of the words."""
        ranges = [
            (token.char_offset_from, token.char_offset_to)
            for token in analyzer().pre_tokenize(text).tokens
            if token.text in self._words or (self._prefixes and token.text.startswith(self._prefixes))
        ]
        if len(text) <= SEARCH_SNIPPET_CHARS:
            return Excerpt(text, tuple(ranges))
        start = _best_start(text, ranges)
        end = min(start + SEARCH_SNIPPET_CHARS, len(text))
        return Excerpt(
            text[start:end], tuple((low - start, high - start) for low, high in ranges if start <= low and high <= end)
        )


def _best_start(text: str, ranges: list[tuple[int, int]]) -> int:
    """Return where to start a part with the most of these ranges, a little before the first, at a word's start."""
    best = (0, 0)
    last = 0
    for number, (start, _) in enumerate(ranges):
        last = max(last, number)
        while last + 1 < len(ranges) and ranges[last + 1][1] - start <= SEARCH_SNIPPET_CHARS * 3 // 4:
            last += 1
        if last + 1 - number > best[0]:
            best = (last + 1 - number, start)
    start = max(best[1] - SEARCH_SNIPPET_CHARS // 4, 0)
    if start:
        space = text.find(" ", start, best[1])
        start = space + 1 if space >= 0 else start
    return start


Ordering = Literal["newest", "oldest", "best"]
_ORDERINGS = ("newest", "oldest", "best")


@dataclass(frozen=True, slots=True)
class Hit(Displayed):
    """An event found. segment_id, offset: its position; arrival_time: arrival time, an upper limit, by which hits are
    ordered. score: its relevance, for `best`. excerpt: of the text with most of the query's words."""

    data: bytes
    segment_id: int
    offset: int
    arrival_time: datetime
    score: float | None = None
    excerpt: Excerpt | None = None


@dataclass(frozen=True, slots=True)
class Page(Displayed):
    """A page of hits. count: of all hits. next: the `after` of the next page; None on the last page."""

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
    """Queries of one stream's index. cache: the folder for its shards, see `shard_cache.cache_folder`."""

    def __init__(self, definitions: Definitions, definition: IndexDefinition, cache: str | Path | None = None) -> None:
        check_installed()
        self.definition = definition
        self._definitions, self._stores = definitions, definitions.stores
        self._local = LocalIndex(definitions, definition, None if cache is None else Path(cache))
        self._scope, self._stream = definitions.scope, definition.stream
        self._cuts = definitions.manager.cuts(self._scope, self._stream)
        self._opened: LRUCache[int, OpenShards] = LRUCache(
            SEARCH_VERSIONS_CACHED
        )  # by generation, for further pages by `best`

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
        """Return a page of the events that match a query, the newest, oldest or best first.

        after: the `next` of the page before. since, until: only events between these cuts, each a cut or an argument of
        `StreamCuts.named`. keys: only segments with these routing keys; they may have others, too. wait_for: wait until
        all events before that cut are indexed; RequestTimeoutError after `timeout` seconds.
        """
        self._local.check_open()
        if order not in _ORDERINGS:
            raise InvalidArgumentError(f"order must be one of {', '.join(_ORDERINGS)}, not {order!r}")
        if not isinstance(limit, int) or not 0 < limit <= SEARCH_HITS:
            raise InvalidArgumentError(f"limit must be 1 to {SEARCH_HITS:,}, not {limit}")
        parts = [str(part) for part in (text, order, since, until, keys)]
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=9).hexdigest()
        begin = None if after is None else after_of(after, digest)
        if order == "best" and until is None and parse(text).until is None:
            until = await self._ranking_cut(begin)
        question = await self._question(text, since, until, keys)
        await self.wait(wait_for, timeout)
        opened = self._opened.get(begin.generation) if begin is not None and order == "best" else None
        opened = opened or await self._local.newest()
        tantivy_query = await self._tantivy_query(question, opened.manifest)
        fields, searcher = self.definition.fields, opened.searcher
        if order == "best":
            hits_found, count = await asyncio.to_thread(best, searcher, tantivy_query, limit + 1, begin)
        else:
            is_newest = order == "newest"
            hits_found, count = await asyncio.to_thread(
                listed, searcher, tantivy_query, fields, limit + 1, begin, is_newest
            )
        shown = fitting(hits_found[:limit])
        hits = tuple(await self._hits(question, shown))
        if len(hits_found) == len(shown):
            return Page(hits, count, None)
        last = shown[-1]
        end = PageCursor(digest, last.order, last.segment, last.offset)
        if order == "best":
            generation = opened.manifest.generation
            self._opened[generation] = opened
            as_of = "" if question.until is None else question.until.as_text()
            end = replace(end, score=last.score or 0.0, as_of=as_of, generation=generation)
        return Page(hits, count, end.as_text())

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
        """Count the events that match a query: all of them, as `{"all": …}`, or by a field, see `pages.counted`.

        since, until, keys, wait_for, timeout: as in `query`.
        """
        self._local.check_open()
        question = await self._question(text, since, until, keys)
        await self.wait(wait_for, timeout)
        opened = await self._local.newest()
        tantivy_query = await self._tantivy_query(question, opened.manifest)
        return await asyncio.to_thread(
            counted, opened.searcher, tantivy_query, self.definition.fields, by, interval_s, limit
        )

    async def wait(self, cut: StreamCut | str | None, timeout: float = 30.0) -> None:
        """Wait until all events before a cut are indexed; RequestTimeoutError after `timeout` seconds."""
        if (target := await self._cut(cut)) is None:
            return
        until = time.monotonic() + timeout
        limits = await self._limits(target)
        manifest = await self._definitions.manifest(self.definition).get()
        await self._check_same(target, manifest)
        while True:
            offsets = {reach.segment_id: limits.limit(reach.range) for reach in manifest.segments.values()}
            if has_all(manifest, offsets):
                return
            if time.monotonic() >= until:
                raise RequestTimeoutError(
                    f"the index of {self._scope}/{self._stream} didn't reach the cut within {timeout:g} s: check with "
                    "`nadi search status` whether an indexer runs"
                )
            await asyncio.sleep(min(SEARCH_POLL_S, max(until - time.monotonic(), 0.0)))
            manifest = await self._definitions.manifest(self.definition).get()

    async def reached(self) -> StreamCut:
        """Return the cut before which all events are indexed."""
        manifest = await self._definitions.manifest(self.definition).get()
        return StreamCut(self._scope, self._stream, manifest.positions())

    async def hit_cut(self, hit: Hit) -> StreamCut:
        """Return a cut at a hit's event. Segments of other keys are at their starts in the hit's epoch, or at what is
        left of these keys."""
        epoch = segment_epoch(hit.segment_id)
        siblings = await self._stores.controller.epoch_segments(self._scope, self._stream, epoch)
        head = await self._cuts.head()
        ranges = [segment for segment in await self._definitions.ranges(head) if segment.segment_id != hit.segment_id]
        positions = {hit.segment_id: hit.offset}
        for segment in siblings:
            if segment.segment_id == hit.segment_id:
                continue
            later = [
                remaining
                for remaining in ranges
                if remaining.segment_id >= segment.segment_id and share_keys(remaining, segment)
            ]
            if later and later[0].segment_id != segment.segment_id:
                positions |= {remaining.segment_id: head.positions[remaining.segment_id] for remaining in later}
            elif later:
                positions[segment.segment_id] = max(head.positions[segment.segment_id], 0)
            else:
                positions[segment.segment_id] = 0
        return StreamCut(self._scope, self._stream, positions)

    def close(self) -> None:
        """Remove this process's files."""
        self._opened.clear()
        self._local.close()

    async def discard(self) -> None:
        """Delete this machine's copy of a deleted index."""
        self.close()
        await self._local.discard()

    # --- questions ------------------------------------------------------------------------

    async def _ranking_cut(self, begin: PageCursor | None) -> StreamCut | None:
        """Return the cut up to which the best hits are ranked; None if a sealed stream is indexed completely."""
        if begin is not None:
            cut = StreamCut.from_text(begin.as_of) if begin.as_of else None
            check_cut(cut, self._scope, self._stream)
            return cut
        reached = await self.reached()
        return reached if reached.positions else None

    async def _question(
        self, text: str, since: StreamCut | str | None, until: StreamCut | str | None, keys: Sequence[str] | None
    ) -> _Question:
        parsed = parse(text)
        for name, argument, in_query in (("since", since, parsed.since), ("until", until, parsed.until)):
            if argument is not None and in_query is not None:
                raise InvalidArgumentError(f"{name} is also given in the query as _{name}: remove one")
        routing_keys = tuple(check_strings(keys, "routing keys")) if keys is not None else None
        for key in routing_keys or ():
            check_text(key, "a routing key")
        return _Question(
            bind(parsed.node, self.definition.fields),
            await self._cut(since if since is not None else parsed.since),
            await self._cut(until if until is not None else parsed.until, end=True),
            routing_keys,
        )

    async def _cut(self, cut: StreamCut | str | None, *, end: bool = False) -> StreamCut | None:
        if isinstance(cut, str):
            check_text(cut, "a cut")
            return await self._cuts.named(cut, end=end)
        check_cut(cut, self._scope, self._stream)
        return cut

    async def _tantivy_query(self, question: _Question, manifest: ShardManifest) -> Query:
        """Return tantivy's query without events outside the bounds or before the stream's head."""
        head = await self._cuts.head()
        await self._check_same(head, manifest)
        lows = [await self._limits(cut) for cut in (head, question.since) if cut is not None]
        high = None if question.until is None else await self._limits(question.until)
        fields = self.definition.fields
        return within(translated(question.bound, fields), fields, manifest, lows, high, question.keys)

    async def _check_same(self, cut: StreamCut, manifest: ShardManifest) -> None:
        """Raise StreamRecreatedError if the index is of an earlier stream, which shares no segments with the cut."""
        if not cut.positions.keys() & manifest.segments.keys():
            await check_same(self._stores, self._scope, self._stream, manifest.segments, REMADE)

    async def _limits(self, cut: StreamCut) -> CutBound:
        return CutBound(cut.positions, await self._definitions.ranges(cut))

    # --- answers ------------------------------------------------------------------------------

    async def _hits(self, question: _Question, placed: Sequence[HitPosition]) -> list[Hit]:
        """Return hits with their events, without events truncated meanwhile."""
        turns = asyncio.Semaphore(SEARCH_HITS_AT_ONCE)

        async def event(hit: HitPosition) -> bytes | None:
            async with turns:
                try:
                    name = segment_name(self._scope, self._stream, hit.segment)
                    blocks = read_segment_range(self._stores, name, hit.offset, hit.end)
                    (data,) = [data async for block in blocks for data in block.events()]
                except (TruncatedError, SegmentNotFoundError):
                    return None
                return data

        events = await asyncio.gather(*map(event, placed))

        def with_events() -> list[Hit]:
            return [
                Hit(data, hit.segment, hit.offset, hit.arrival_time, hit.score, self._excerpt(question.bound, data))
                for hit, data in zip(placed, events, strict=True)
                if data is not None
            ]

        return await asyncio.to_thread(with_events)

    def _excerpt(self, bound: Bound, data: bytes) -> Excerpt | None:
        """Return the excerpt of the first text with one of the words, or of the first text."""
        fields = self.definition.fields
        try:
            values = reader_of(self.definition.format, fields)(data)
        except InvalidEventError:
            return None
        excerpts = [
            Words(bound, number).excerpt(str(value)) for number, value in values if fields[number].kind == "text"
        ]
        return next((excerpt for excerpt in excerpts if excerpt.matches), excerpts[0] if excerpts else None)
