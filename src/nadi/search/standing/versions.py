"""The matchers of a set's queries, by version: made of the queries' records when a version is first asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nadi.errors import InvalidArgumentError
from nadi.model.event import EventBlock
from nadi.runtime import REAL
from nadi.search.fields import UnfitError
from nadi.search.query.bound import bind
from nadi.search.query.parser import parse
from nadi.search.standing.matching import Anchor, Matcher, Query, counted
from nadi.search.standing.progress import Progress
from nadi.search.standing.records import QuerySet, Records, StandingQuery

_KEPT = 3  # versions
_SAMPLED = 2_000  # events, by which it is known what is rare


class Versions:
    def __init__(self, records: Records) -> None:
        self._records = records
        self._set: QuerySet = records.found
        self._made: dict[int, Matcher] = {}
        self._queries: dict[str, Query] = {}  # by id
        self._seen: Counter[Anchor] = Counter()
        self._sampled = 0

    async def matcher(self, progress: Progress, version: int) -> Matcher:
        """That of a version that a batch was begun with, or of the newest."""
        if version not in self._made:
            records = await self._records.queries()
            wanted = [one for one in records if _is_in(one, progress, version)]
            made = await REAL.in_thread(self._matcher, wanted)
            self._made = {kept: self._made[kept] for kept in sorted(self._made)[1 - _KEPT :]} | {version: made}
        return self._made[version]

    async def group(self, progress: Progress, group: str) -> Matcher:
        """That of a group's queries alone."""
        records = await self._records.queries()
        wanted = [one for one in records if one.group == group and one.id not in progress.removed]
        return await REAL.in_thread(self._matcher, wanted)

    def sample(self, matcher: Matcher, blocks: Sequence[EventBlock]) -> None:
        """Note what is in some of the first events: the next matchers have anchors that are rare in these."""
        if self._sampled >= _SAMPLED:
            return
        for block in blocks:
            for data in block.events()[: _SAMPLED - self._sampled]:
                self._sampled += 1
                try:
                    self._seen += counted([matcher.subject(data)])
                except UnfitError:
                    continue
        if self._sampled >= _SAMPLED:
            self._made.clear()

    def _matcher(self, wanted: Sequence[StandingQuery]) -> Matcher:
        found = {one.name: self._query(one) for one in wanted}
        if len(self._queries) > 2 * len(wanted) + 1_000:
            self._queries = {one.id: self._queries[one.id] for one in wanted}
        return Matcher(found, self._set.format, self._set.fields, self._seen)

    def _query(self, one: StandingQuery) -> Query:
        if one.id not in self._queries:
            try:
                self._queries[one.id] = Query(bind(parse(one.text).node, self._set.fields))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"the standing query {one.name}: {error}") from error
        return self._queries[one.id]


def _is_in(one: StandingQuery, progress: Progress, version: int) -> bool:
    joined = progress.groups.get(one.group)
    return joined is not None and joined <= version and progress.removed.get(one.id, version + 1) > version
