"""Asks an index: hits with their events and excerpts of them, counts, and whether it has come as far as a cut."""

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

from nadi.client.control.arguments import checked, several_texts
from nadi.client.control.closing import Closing
from nadi.client.reading.boundary import check_cut
from nadi.client.reading.segment_range import read_segment_range
from nadi.display import Displayed
from nadi.errors import InvalidArgumentError, RequestTimeoutError, SegmentNotFoundError, TruncatedError
from nadi.limits import SEARCH_HITS, SEARCH_HITS_AT_ONCE, SEARCH_KEPT, SEARCH_LOOK_S, SEARCH_SNIPPET_CHARS
from nadi.model.frontier import Bound as CutBound
from nadi.model.segments import share_keys
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch, segment_name
from nadi.process.segment_follower import check_same
from nadi.search.definition import REMADE, Definitions, IndexDefinition
from nadi.search.fields import UnfitError, analyzer, check_installed, reader_of
from nadi.search.query.bound import Bound, Close, Follow, Has, Starts, bind, leaves, translated, within
from nadi.search.query.parser import check_text, parse
from nadi.search.searching.pages import After, Placed, after_of, best, counted, fitting, listed
from nadi.search.searching.shard_cache import LocalIndex, OpenShards
from nadi.search.shards.manifest import ShardManifest, has_all

if TYPE_CHECKING:
    from tantivy import Query


@dataclass(frozen=True, slots=True)
class Excerpt(Displayed):
    """found: where words that were asked for begin and end in `text`."""

    text: str
    found: tuple[tuple[int, int], ...]

    def marked(self, before: str, after: str) -> str:
        """The text with something before and after each word that was found.

        >>> Excerpt("no error here", ((3, 8),)).marked("*", "*")
        'no *error* here'
        """
        made, at = [], 0
        for start, end in self.found:
            made += [self.text[at:start], before, self.text[start:end], after]
            at = end
        return "".join([*made, self.text[at:]])


class Words:
    """The words of a field that a query asks for, not those that it excludes."""

    def __init__(self, bound: Bound, field: int) -> None:
        found = [one for one in leaves(bound, excluded=False) if one.field == field]
        self._words = {one.value for one in found if isinstance(one, Has)}
        self._words |= {word for one in found if isinstance(one, Follow | Close) for word in one.words}
        self._prefixes = tuple(one.prefix for one in found if isinstance(one, Starts))

    def excerpt(self, text: str) -> Excerpt:
        """The best part of a text; its start if none of the words is there."""
        places = [
            (token.char_offset_from, token.char_offset_to)
            for token in analyzer().pre_tokenize(text).tokens
            if token.text in self._words or (self._prefixes and token.text.startswith(self._prefixes))
        ]
        if len(text) <= SEARCH_SNIPPET_CHARS:
            return Excerpt(text, tuple(places))
        start = _best_start(text, places)
        end = min(start + SEARCH_SNIPPET_CHARS, len(text))
        return Excerpt(
            text[start:end], tuple((low - start, high - start) for low, high in places if start <= low and high <= end)
        )


def _best_start(text: str, places: list[tuple[int, int]]) -> int:
    """Where a part begins that has the most of these places, a little before the first of them, at a word's start."""
    best = (0, 0)
    last = 0
    for number, (start, _) in enumerate(places):
        last = max(last, number)
        while last + 1 < len(places) and places[last + 1][1] - start <= SEARCH_SNIPPET_CHARS * 3 // 4:
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
    """Queries of one stream's index. cache: the folder for its shards, see `local.cache_folder`."""

    def __init__(self, definitions: Definitions, definition: IndexDefinition, cache: str | Path | None = None) -> None:
        check_installed()
        self.definition = definition
        self._definitions, self._stores = definitions, definitions.stores
        self._local = LocalIndex(definitions, definition, None if cache is None else Path(cache))
        self._scope, self._stream = definitions.scope, definition.stream
        self._cuts = definitions.manager.cuts(self._scope, self._stream)
        self._kept: LRUCache[int, OpenShards] = LRUCache(SEARCH_KEPT)  # for further pages of the best, by generation

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
        asked_for = [str(one) for one in (text, order, since, until, keys)]
        digest = hashlib.blake2b(repr(asked_for).encode(), digest_size=9).hexdigest()
        begin = None if after is None else after_of(after, digest)
        if order == "best" and until is None and parse(text).until is None:
            until = await self._as_of(begin)
        question = await self._question(text, since, until, keys)
        await self.wait(wait_for, timeout)
        opened = self._kept.get(begin.generation) if begin is not None and order == "best" else None
        opened = opened or await self._local.newest()
        asked = await self._asked(question, opened.manifest)
        fields, searcher = self.definition.fields, opened.searcher
        if order == "best":
            found, count = await asyncio.to_thread(best, searcher, asked, limit + 1, begin)
        else:
            is_newest = order == "newest"
            found, count = await asyncio.to_thread(listed, searcher, asked, fields, limit + 1, begin, is_newest)
        shown = fitting(found[:limit])
        hits = tuple(await self._hits(question, shown))
        if len(found) == len(shown):
            return Page(hits, count, None)
        last = shown[-1]
        end = After(digest, last.order, last.segment, last.offset)
        if order == "best":
            generation = opened.manifest.generation
            self._kept[generation] = opened
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
        """How many events fit a query: all of them, as `{"all": …}`, or by a field, see `pages.counted`.

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
            if has_all(manifest, found):
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
        self, text: str, since: StreamCut | str | None, until: StreamCut | str | None, keys: Sequence[str] | None
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

    async def _asked(self, question: _Question, manifest: ShardManifest) -> Query:
        """The question to tantivy: what fits, less what lies outside of the bounds, or before the stream's head."""
        head = await self._cuts.head()
        await self._check_same(head, manifest)
        lows = [await self._limits(cut) for cut in (head, question.since) if cut is not None]
        high = None if question.until is None else await self._limits(question.until)
        fields = self.definition.fields
        return within(translated(question.bound, fields), fields, manifest, lows, high, question.keys)

    async def _check_same(self, cut: StreamCut, manifest: ShardManifest) -> None:
        """StreamRemadeError, if the index is that of an earlier stream of that name; which has none of the segments."""
        if not cut.positions.keys() & manifest.segments.keys():
            await check_same(self._stores, self._scope, self._stream, manifest.segments, REMADE)

    async def _limits(self, cut: StreamCut) -> CutBound:
        return CutBound(cut.positions, await self._definitions.ranges(cut))

    # --- answers ------------------------------------------------------------------------------

    async def _hits(self, question: _Question, found: Sequence[Placed]) -> list[Hit]:
        """With their events; those that were truncated away meanwhile left out."""
        turns = asyncio.Semaphore(SEARCH_HITS_AT_ONCE)

        async def event(one: Placed) -> bytes | None:
            async with turns:
                try:
                    name = segment_name(self._scope, self._stream, one.segment)
                    blocks = read_segment_range(self._stores, name, one.offset, one.end)
                    (data,) = [data async for block in blocks for data in block.events()]
                except (TruncatedError, SegmentNotFoundError):
                    return None
                return data

        events = await asyncio.gather(*map(event, found))

        def made() -> list[Hit]:
            return [
                Hit(data, one.segment, one.offset, one.came, one.score, self._excerpt(question.bound, data))
                for one, data in zip(found, events, strict=True)
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
