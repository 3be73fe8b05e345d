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
from nadi.client.controller import SegmentRange
from nadi.client.policy import RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.reader import Event
from nadi.client.readergroup.blocking import EventReader, ReaderGroup, ReaderGroupManager
from nadi.client.readergroup.group import Checkpoint, GroupSize
from nadi.client.readergroup.reader import EventRead, on_events
from nadi.client.readergroup.source import Gap
from nadi.client.security import Basic, Bearer
from nadi.client.streams import SegmentInfo, StreamInfo
from nadi.client.tables import ABSENT, ANY_VERSION, TableValue

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
