"""Reporting to the controller what a group no longer needs: retention truncates only what all groups have released.

The release of each stream is a stream cut that only moves forward: after a reset, what was released stays released,
and what retention has truncated meanwhile is a gap.
"""

from __future__ import annotations

from collections.abc import Iterable

from nadi.client.readergroup.state import GroupState, cuts_of
from nadi.client.segments.stores import SegmentStores
from nadi.errors import InvalidStreamCutError, NotFoundError
from nadi.model.readergroup import StreamDataRetention
from nadi.model.streamcut import StreamCut


async def release(stores: SegmentStores, scope: str, group: str, group_id: str, cuts: Iterable[StreamCut]) -> None:
    """Release what lies before the cuts; InvalidStreamCutError if one isn't a boundary, or not after the last."""
    for cut in cuts:
        await stores.controller.update_subscriber_stream_cut(f"{scope}/{group}", group_id, cut)


class Releases:
    """One reader's part in releasing: the first by name releases for all, up to the last complete checkpoint."""

    def __init__(self, stores: SegmentStores, scope: str, group: str, reader: str) -> None:
        self._stores, self._scope, self._group, self._reader = stores, scope, group, reader
        self._number = 0  # of the checkpoint that was released last

    async def follow(self, state: GroupState) -> None:
        if state.retention is not StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT:
            return
        complete = [one for one in state.checkpoints if one.is_complete and not one.is_silent]
        if not complete or complete[-1].number <= self._number or self._reader != min(state.readers, default=""):
            return
        for cut in cuts_of(complete[-1].positions).values():
            try:
                await release(self._stores, self._scope, self._group, state.group_id, [cut])
            except (InvalidStreamCutError, NotFoundError):
                continue  # more was released before the group was reset; or the stream was deleted
        self._number = complete[-1].number
