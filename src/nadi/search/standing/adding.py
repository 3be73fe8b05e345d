"""Queries that are added together: all of them, or none, also where whoever adds them is killed.

The group is announced in the record of progress, its queries are stored, and then it is added, in one change of that
record; `Progress.has` is what makes queries count. While they are stored, a beat shows that somebody is at it. One that
stays the same for long is given up: that is said first, in the same record, and then what was stored is removed. What
is stored under a group that nobody has announced and that wasn't added is nobody's, and is removed by who comes upon
it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from nadi.client.tables.catalog import Record
from nadi.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, NadiError
from nadi.limits import PROCESS_GONE_S, SEARCH_RECORDS_AT_ONCE, SEARCH_STANDING_GROUPS, SEARCH_STANDING_QUERIES
from nadi.search.standing.progress import Progress
from nadi.search.standing.records import Past, Records, StandingQuery
from nadi.search.standing.removing import sweep

_PAUSE_S = 0.1
_REMOVED_S = 3 * PROCESS_GONE_S  # until another has done what a matcher that was killed has begun


class Beats:
    """How long groups that are being added have shown no sign, by the clock of who looks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}  # the last beat, and when it was new

    def silent_for(self, progress: Progress, seconds: float) -> list[str]:
        """Those of which nothing new was seen for so long."""
        now = self._clock()
        self._seen = {
            group: seen if (seen := self._seen.get(group, (beat, now)))[0] == beat else (beat, now)
            for group, beat in progress.adding.items()
        }
        return [group for group, (_, since) in self._seen.items() if now - since >= seconds]


async def add_group(
    records: Records, changes: Record[Progress], group: str, queries: Sequence[StandingQuery], past: Past | None
) -> None:
    """Add queries as a group; past: from where it is led through the past. AlreadyExistsError if a name is taken."""

    def announced(newest: Progress) -> Progress | None:
        if group in newest.adding:
            return None
        if len(newest.groups) + len(newest.led) + len(newest.adding) >= SEARCH_STANDING_GROUPS:
            raise InvalidArgumentError(
                f"standing queries were added at {SEARCH_STANDING_GROUPS:,} times, which is the most: add many at once"
            )
        return newest.announced(group)

    await changes.change(announced)
    try:
        await _make_room(records, changes, {one.name for one in queries})
        for first in range(0, len(queries), SEARCH_RECORDS_AT_ONCE):
            await changes.change(lambda newest: newest.beaten(group))
            await records.put(queries[first : first + SEARCH_RECORDS_AT_ONCE])
        if past is not None:
            await records.past(group).create(past)
        await changes.change(lambda newest: None if newest.has(group) else newest.added(group, is_led=past is not None))
    except NadiError:
        with suppress(NadiError):  # then others do it
            await give_up(records, changes, group)
        raise


async def give_up(records: Records, changes: Record[Progress], group: str) -> None:
    """Say that a group won't be added, unless it was, and remove what is stored of it."""
    progress = await changes.change(lambda newest: newest.given_up(group))
    if progress.has(group):
        return
    kept, _ = await records.sorted_out()
    await records.forget([one for one in kept if one.query.group == group])
    await records.past(group).delete()
    await changes.change(lambda newest: newest.cleared(group))


async def _make_room(records: Records, changes: Record[Progress], names: set[str]) -> None:
    """Remove what is nobody's; wait for others that add queries of these names, and for what has such a name and was
    removed, but a batch needs it. AlreadyExistsError, ConflictError."""
    beats, until = Beats(), time.monotonic() + _REMOVED_S
    while True:
        kept = await records.kept()
        progress = await changes.get()  # after that: each group of what was stored then is in it, or is nobody's
        added = [one for one in kept if progress.has(one.query.group)]
        if len(added) + len(names) > SEARCH_STANDING_QUERIES:
            raise InvalidArgumentError(f"a stream has at most {SEARCH_STANDING_QUERIES:,} standing queries")
        alike = [one.query for one in added if one.query.name in names]
        taken = next((one.name for one in alike if one.id not in progress.removed), None)
        if taken is not None:
            raise AlreadyExistsError("a standing query", taken)
        if alike and time.monotonic() > until:
            raise ConflictError(
                f"the standing query {alike[0].name} was removed, but a batch that was begun with it isn't done: start "
                "a matcher, if none runs, and add it again"
            )
        others = [one for one in kept if not progress.has(one.query.group)]
        await records.forget([one for one in others if one.query.group not in progress.adding])
        waited = {one.query.group for one in others if one.query.name in names} & progress.adding.keys()
        if not waited and not alike:
            return
        await sweep(records, changes)
        for group in waited.intersection(beats.silent_for(progress, PROCESS_GONE_S)):
            await give_up(records, changes, group)
        await asyncio.sleep(_PAUSE_S)
