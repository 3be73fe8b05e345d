"""The client for asyncio: `async with nadi.client.aio.StreamManager(uri) as manager: ...`."""

from __future__ import annotations

from nadi.client.bytestream.byte_reader import ByteStreamReader
from nadi.client.bytestream.byte_writer import ByteStreamWriter
from nadi.client.control.policy import Holder, Kept, RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.control.security import Basic, Bearer
from nadi.client.definitions.stream_tables import StreamTables, TableDefinition
from nadi.client.indexstream.index_reader import IndexReader, IndexWriter
from nadi.client.indexstream.record import IndexRecord
from nadi.client.manager.streams import StreamManager
from nadi.client.places.cuts import StreamCuts
from nadi.client.places.shelf import Bookmark, Bookmarks
from nadi.client.places.slices import NamedSlice, NamedSlices
from nadi.client.readergroup.event_reads import EventRead, on_events, on_positions
from nadi.client.readergroup.group import Checkpoint, GroupSize, ReaderGroup
from nadi.client.readergroup.manager import ReaderGroupManager
from nadi.client.readergroup.reader import EventReader
from nadi.client.readergroup.values import GroupValueReader, ValueRead
from nadi.client.reading.read_ahead import Gap
from nadi.client.reading.reader import Event, SliceReader
from nadi.client.reading.watermarks import TimeWindow
from nadi.client.segments.info import SegmentInfo, StreamInfo
from nadi.client.serializers.registry import SchemaGroup
from nadi.client.serializers.values import (
    TransactionalValueWriter,
    ValueEvent,
    ValueReader,
    ValueTransaction,
    ValueWriter,
)
from nadi.client.shared.revisioned_stream import RevisionedStream
from nadi.client.shared.shared_state import (
    Journal,
    LeaderElection,
    Lease,
    SharedCounter,
    SharedMap,
    SharedSet,
    SharedState,
)
from nadi.client.shared.state_synchronizer import StateKind, StateSynchronizer
from nadi.client.tables.catalog import Unreadable
from nadi.client.tables.key_value_registry import KeyValueTableConfiguration
from nadi.client.tables.key_value_table import Insert, KeyValueTable, Put, Remove, TableEntry, TableKey, Version
from nadi.client.tables.table import ABSENT, ANY_VERSION, Table, TableValue
from nadi.client.writing.ack import Ack
from nadi.client.writing.sender import EventWriter
from nadi.client.writing.transactions import Transaction, TransactionalEventWriter
from nadi.model.cutorder import CutOrder
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
    "RevisionedStream",
    "ScalingPolicy",
    "SchemaGroup",
    "ScrubPass",
    "ScrubReport",
    "SegmentInfo",
    "SegmentRange",
    "SharedCounter",
    "SharedMap",
    "SharedSet",
    "SharedState",
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
