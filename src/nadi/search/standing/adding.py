"""Queries that are added together: all of them, or none, also where whoever adds them is killed.

The queries are stored under a new group, and then the group is added, in one change of the record of progress, if
nothing was added or removed since its names were looked for; `Progress.has` is what makes queries count. What a kill
leaves before that is removed later, as queries are that were removed: the record of progress says since which version,
and their own records go when no batch that was begun needs them any more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from nadi.backoff import Tries
from nadi.client.tables.catalog import Record
from nadi.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, NadiError
from nadi.limits import SEARCH_RECORDS_AT_ONCE, SEARCH_STANDING_GROUPS, SEARCH_STANDING_QUERIES
from nadi.process.following import OvertakenError
from nadi.search.standing.progress import Progress
from nadi.search.standing.records import Records, StandingQuery

_ABANDONED_S = 600.0  # after which queries that aren't added won't be; who adds them then has to begin again


async def add_group(
    records: Records, changes: Record[Progress], queries: Sequence[StandingQuery], past: Progress | None
) -> None:
    """Add queries as a group; past: from where it is led through the past. AlreadyExistsError if a name is taken."""
    group = queries[0].group
    await _check(records, await changes.get(), queries, are_stored=False)
    try:
        for first in range(0, len(queries), SEARCH_RECORDS_AT_ONCE):
            await records.put(queries[first : first + SEARCH_RECORDS_AT_ONCE])
        if past is not None:
            await records.past(group).create(past)
        tries = Tries(f"the standing queries of {records.found.stream}")
        while True:
            known = await changes.get()
            await _check(records, known, queries, are_stored=True)
            try:
                await changes.change(partial(_added, known, group, past))
                return
            except OvertakenError:
                await tries.lost()
    except NadiError:
        with suppress(NadiError):  # then others do it
            await _abandon(records, changes, group)
        raise


async def _check(records: Records, progress: Progress, queries: Sequence[StandingQuery], *, are_stored: bool) -> None:
    """AlreadyExistsError if a name is taken; ConflictError if another has removed what was stored."""
    kept = await records.queries()
    names = {one.name for one in queries}
    others = [one for one in kept if progress.has(one.group) and one.id not in progress.removed]
    if len(others) + len(queries) > SEARCH_STANDING_QUERIES:
        raise InvalidArgumentError(f"a stream has at most {SEARCH_STANDING_QUERIES:,} standing queries")
    if taken := next((one.name for one in others if one.name in names), None):
        raise AlreadyExistsError("a standing query", taken)
    is_removed = queries[0].group in progress.removed or not {one.id for one in queries} <= {one.id for one in kept}
    if are_stored and is_removed:
        raise ConflictError("adding these queries took so long that another took it for ended: add them again")


def _added(known: Progress, group: str, past: Progress | None, newest: Progress) -> Progress | None:
    if newest.has(group):
        return None
    if (newest.version, newest.led) != (known.version, known.led):
        raise OvertakenError("another has added or removed queries")
    if len(newest.groups) + len(newest.led) >= SEARCH_STANDING_GROUPS:
        raise InvalidArgumentError(
            f"standing queries were added at {SEARCH_STANDING_GROUPS:,} times, which is the most: add many at once"
        )
    return newest.added(group, is_led=past is not None)


async def _abandon(records: Records, changes: Record[Progress], group: str) -> None:
    """Remove what is stored of a group that wasn't added, so that it can't be."""
    made = await changes.change(
        lambda newest: None if newest.has(group) or group in newest.removed else newest.without([group])
    )
    if group in made.removed:
        await records.past(group).delete()
        await sweep(records, changes)


async def abandon_old(records: Records, changes: Record[Progress]) -> None:
    """Remove what whoever was killed has stored of groups long ago, and didn't add."""
    before_ms = (time.time() - _ABANDONED_S) * 1000
    kept, _ = await records.sorted_out()
    progress = await changes.get()
    for group in {one.group for one in kept if one.created_ms < before_ms and not progress.has(one.group)}:
        await _abandon(records, changes, group)


async def sweep(records: Records, changes: Record[Progress]) -> None:
    """Delete the records of queries that were removed, once no batch needs them."""
    progress = changes.newest
    gone = {one for one, version in progress.removed.items() if version <= progress.least_version}
    if not gone:
        return
    kept, unreadable = await records.sorted_out()
    left = {one.group for one in kept if one.id not in gone}
    await records.forget(one.key for one in kept if one.id in gone or one.group in gone)
    left |= progress.groups.keys() if unreadable else set()  # any may have one that can't be read
    empty = [group for group in progress.groups if group not in left and group not in progress.held]
    await changes.change(lambda newest: newest.forgotten(gone, empty))
