"""The client: scopes, streams, writers, readers, transactions, tables.

This is the blocking face; `nadi.client.aio` has the same classes for asyncio.
"""

from __future__ import annotations

from nadi.client.blocking.byte_file import ByteStreamReader, ByteStreamWriter
from nadi.client.blocking.cuts import Bookmarks, NamedSlices, StreamCuts, StreamTables
from nadi.client.blocking.manager import StreamManager
from nadi.client.blocking.readergroup import EventReader, GroupValueReader, ReaderGroup, ReaderGroupManager
from nadi.client.blocking.readers import Schemas, SliceReader, ValueReader
from nadi.client.blocking.structures import (
    IndexReader,
    IndexWriter,
    Journal,
    KeyValueTable,
    LeaderElection,
    SharedCounter,
    SharedMap,
    SharedSet,
    StateSynchronizer,
    Table,
)
from nadi.client.blocking.writers import (
    EventWriter,
    Transaction,
    TransactionalEventWriter,
    TransactionalValueWriter,
    ValueTransaction,
    ValueWriter,
)
from nadi.client.control.policy import Holder, Kept, RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.control.security import Basic, Bearer
from nadi.client.definitions.stream_tables import TableDefinition
from nadi.client.indexstream.record import IndexRecord
from nadi.client.places.shelf import Bookmark
from nadi.client.places.slices import NamedSlice
from nadi.client.readergroup.event_reads import EventRead, on_events, on_positions
from nadi.client.readergroup.group import Checkpoint, GroupSize
from nadi.client.readergroup.values import ValueRead
from nadi.client.reading.read_ahead import Gap
from nadi.client.reading.reader import Event
from nadi.client.reading.watermarks import TimeWindow
from nadi.client.segments.info import SegmentInfo, StreamInfo
from nadi.client.serializers.values import ValueEvent
from nadi.client.shared.shared_state import Lease
from nadi.client.shared.state_synchronizer import StateKind
from nadi.client.tables.catalog import Unreadable
from nadi.client.tables.key_value_registry import KeyValueTableConfiguration
from nadi.client.tables.key_value_table import Insert, Put, Remove, TableEntry, TableKey, Version
from nadi.client.tables.table import ABSENT, ANY_VERSION, TableValue
from nadi.client.writing.ack import Ack
from nadi.model.cutorder import CutOrder
from nadi.model.event_time import EventTime
from nadi.model.readergroup import StreamDataRetention
from nadi.model.scrub import ScrubPass, ScrubReport
from nadi.model.segments import SegmentRange

__all__ = [
    "ABSENT",
    "ANY_VERSION",
    "Ack",
    "Basic",
    "Bearer",
    "Bookmark",
    "Bookmarks",
    "ByteStreamReader",
    "ByteStreamWriter",
    "Checkpoint",
    "CutOrder",
    "Event",
    "EventRead",
    "EventReader",
    "EventTime",
    "EventWriter",
    "Gap",
    "GroupSize",
    "GroupValueReader",
    "Holder",
    "IndexReader",
    "IndexRecord",
    "IndexWriter",
    "Insert",
    "Journal",
    "Kept",
    "KeyValueTable",
    "KeyValueTableConfiguration",
    "LeaderElection",
    "Lease",
    "NamedSlice",
    "NamedSlices",
    "Put",
    "ReaderGroup",
    "ReaderGroupManager",
    "Remove",
    "RetentionPolicy",
    "ScalingPolicy",
    "Schemas",
    "ScrubPass",
    "ScrubReport",
    "SegmentInfo",
    "SegmentRange",
    "SharedCounter",
    "SharedMap",
    "SharedSet",
    "SliceReader",
    "StateKind",
    "StateSynchronizer",
    "StreamConfiguration",
    "StreamCuts",
    "StreamDataRetention",
    "StreamInfo",
    "StreamManager",
    "StreamTables",
    "Table",
    "TableDefinition",
    "TableEntry",
    "TableKey",
    "TableValue",
    "TimeWindow",
    "Transaction",
    "TransactionalEventWriter",
    "TransactionalValueWriter",
    "Unreadable",
    "ValueEvent",
    "ValueRead",
    "ValueReader",
    "ValueTransaction",
    "ValueWriter",
    "Version",
    "on_events",
    "on_positions",
]
