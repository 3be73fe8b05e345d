"""The client for asyncio: `async with nadi.client.aio.StreamManager(uri) as manager: ...`."""

from __future__ import annotations

from nadi.client.batch import Ack
from nadi.client.bookmarks import Bookmark, Bookmarks, NamedSlice, NamedSlices
from nadi.client.controller import SegmentRange
from nadi.client.cuts import StreamCuts
from nadi.client.policy import RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.reader import Event, SliceReader
from nadi.client.security import Basic, Bearer
from nadi.client.streams import SegmentInfo, StreamInfo, StreamManager
from nadi.client.tables import ABSENT, ANY_VERSION, Table, TableValue
from nadi.client.transactions import Transaction, TransactionalEventWriter
from nadi.client.writer import EventWriter

__all__ = [
    "ABSENT",
    "ANY_VERSION",
    "Ack",
    "Basic",
    "Bearer",
    "Bookmark",
    "Bookmarks",
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
