"""Queries that are removed: the record of progress says since which version, and their own records go when no batch
that was begun needs them any more."""

from __future__ import annotations

from nadi.client.tables.catalog import Record
from nadi.search.standing.progress import Progress
from nadi.search.standing.records import Records


async def sweep(records: Records, changes: Record[Progress]) -> None:
    """Delete the records of queries that were removed, once no batch needs them."""
    progress = changes.newest
    gone = {one for one, version in progress.removed.items() if version <= progress.least_version}
    if not gone:
        return
    kept, unreadable = await records.sorted_out()
    left = {one.query.group for one in kept if one.query.id not in gone}
    await records.forget([one for one in kept if one.query.id in gone])
    left |= progress.groups.keys() if unreadable else set()  # any may have one that can't be read
    empty = [group for group in progress.groups if group not in left and group not in progress.held]
    await changes.change(lambda newest: newest.forgotten(gone, empty))
