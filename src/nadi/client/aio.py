"""The client for asyncio: `async with nadi.client.aio.StreamManager(uri) as manager: ...`."""

from __future__ import annotations

from nadi.client.batch import Ack
from nadi.client.controller import SegmentRange
from nadi.client.policy import RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.reader import Event, SliceReader
from nadi.client.readergroup.group import Checkpoint, GroupSize, ReaderGroup, ReaderGroupManager
from nadi.client.readergroup.reader import EventRead, EventReader, on_events
from nadi.client.readergroup.source import Gap
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
    "Checkpoint",
    "Event",
    "EventRead",
    "EventReader",
    "EventWriter",
    "Gap",
    "GroupSize",
    "ReaderGroup",
    "ReaderGroupManager",
    "RetentionPolicy",
    "ScalingPolicy",
    "SegmentInfo",
    "SegmentRange",
    "SliceReader",
    "StreamConfiguration",
    "StreamInfo",
    "StreamManager",
    "Table",
    "TableValue",
    "Transaction",
    "TransactionalEventWriter",
    "on_events",
]
