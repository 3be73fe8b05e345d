"""The client: scopes, streams, writers, readers, transactions, tables.

This is the blocking face; `nadi.client.aio` has the same classes for asyncio.
"""

from __future__ import annotations

from nadi.client.batch import Ack
from nadi.client.blocking import (
    EventWriter,
    SliceReader,
    StreamManager,
    Table,
    Transaction,
    TransactionalEventWriter,
)
from nadi.client.blocking_cuts import Bookmarks, NamedSlices, StreamCuts
from nadi.client.bookmarks import Bookmark, NamedSlice
from nadi.client.controller import SegmentRange
from nadi.client.policy import RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.reader import Event
from nadi.client.security import Basic, Bearer
from nadi.client.streams import SegmentInfo, StreamInfo
from nadi.client.tables import ABSENT, ANY_VERSION, TableValue
from nadi.model.cutorder import CutOrder

__all__ = [
    "ABSENT",
    "ANY_VERSION",
    "Ack",
    "Basic",
    "Bearer",
    "Bookmark",
    "Bookmarks",
    "CutOrder",
    "Event",
    "EventWriter",
    "NamedSlice",
    "NamedSlices",
    "RetentionPolicy",
    "ScalingPolicy",
    "SegmentInfo",
    "SegmentRange",
    "SliceReader",
    "StreamConfiguration",
    "StreamCuts",
    "StreamInfo",
    "StreamManager",
    "Table",
    "TableValue",
    "Transaction",
    "TransactionalEventWriter",
]
