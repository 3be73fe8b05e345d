"""A Kafka broker in front of nadi's streams: `nadi kafka`, cuts of streams from offsets of topics, and groups' lag.

>>> import nadi.kafka
>>> with nadi.StreamManager() as manager:  # doctest: +SKIP
...     cut = nadi.kafka.cut_of(manager, "payments", {0: 1200, 1: 1350})
...     manager.bookmarks("kafka").create("before-the-release", cut)

Needs `pip install 'nadi[kafka]'`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nadi.defaults import DEFAULT_KAFKA_SCOPE

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.model.reports import GroupLagReport
    from nadi.model.streamcut import StreamCut

__all__ = ["cut_of", "group_lags", "offsets_of"]


def cut_of(
    manager: StreamManager, topic: str, offsets: Mapping[int, int], *, scope: str = DEFAULT_KAFKA_SCOPE
) -> StreamCut:
    """Return a stream cut before all records at or behind these offsets, by partition; other partitions count from
    their ends.

    Several partitions may share a segment: a reader from the cut may also get records of these before their offsets.
    StreamNotFoundError: the topic doesn't exist.
    """
    from nadi.client.blocking.face import inside
    from nadi.kafka.cuts import cut_of

    thread, core = inside(manager)
    return thread.run(cut_of(core, scope, topic, offsets))


def offsets_of(manager: StreamManager, topic: str, cut: StreamCut) -> dict[int, int]:
    """Return the offset of each partition's first record at or behind the cut, for `assign` or `seek` of consumers.

    StreamNotFoundError: the topic doesn't exist. NotFoundError: the cut belongs to another stream.
    """
    from nadi.client.blocking.face import inside
    from nadi.kafka.cuts import offsets_of

    thread, core = inside(manager)
    return thread.run(offsets_of(core, topic, cut))


def group_lags(manager: StreamManager, *, scope: str = DEFAULT_KAFKA_SCOPE) -> list[GroupLagReport]:
    """Return the lag of each consumer group in each topic with committed offsets: the records behind these, as
    `lag_events`. Other values are None, except for `readers`, the group's members.

    At most 1,000 groups. PermissionDeniedError: the caller may not read the door's table.
    """
    from nadi.client.blocking.face import inside
    from nadi.kafka.cuts import group_lags

    thread, core = inside(manager)
    return thread.run(group_lags(core, scope))
