"""Values and constants shared by the blocking and the asyncio client."""

from __future__ import annotations

from nadi.client.control.policy import KeyValueTableConfiguration as KeyValueTableConfiguration
from nadi.client.control.policy import RetentionHolder as RetentionHolder
from nadi.client.control.policy import RetentionPolicy as RetentionPolicy
from nadi.client.control.policy import RetentionStatus as RetentionStatus
from nadi.client.control.policy import ScalingPolicy as ScalingPolicy
from nadi.client.control.policy import StreamConfiguration as StreamConfiguration
from nadi.client.control.security import Basic as Basic
from nadi.client.control.security import Bearer as Bearer
from nadi.client.control.security import ClientCertificate as ClientCertificate
from nadi.client.definitions.stream_tables import TableDefinition as TableDefinition
from nadi.client.indexstream.record import IndexRecord as IndexRecord
from nadi.client.readergroup.event_reads import EventRead as EventRead
from nadi.client.readergroup.event_reads import on_events as on_events
from nadi.client.readergroup.event_reads import on_positions as on_positions
from nadi.client.readergroup.group import Checkpoint as Checkpoint
from nadi.client.readergroup.group import GroupSize as GroupSize
from nadi.client.readergroup.values import ValueRead as ValueRead
from nadi.client.reading.read_ahead import Gap as Gap
from nadi.client.reading.reader import Event as Event
from nadi.client.reading.watermarks import TimeWindow as TimeWindow
from nadi.client.segments.info import SegmentInfo as SegmentInfo
from nadi.client.segments.info import StreamInfo as StreamInfo
from nadi.client.serializers.values import ValueEvent as ValueEvent
from nadi.client.state_sync.shared_state import LeaderLease as LeaderLease
from nadi.client.state_sync.state_synchronizer import StateKind as StateKind
from nadi.client.stream_cuts.bookmark_store import Bookmark as Bookmark
from nadi.client.stream_cuts.slices import NamedSlice as NamedSlice
from nadi.client.tables.catalog import Unreadable as Unreadable
from nadi.client.tables.key_value_table import Insert as Insert
from nadi.client.tables.key_value_table import Put as Put
from nadi.client.tables.key_value_table import Remove as Remove
from nadi.client.tables.key_value_table import TableEntry as TableEntry
from nadi.client.tables.key_value_table import TableKey as TableKey
from nadi.client.tables.key_value_table import Version as Version
from nadi.client.tables.table import ABSENT as ABSENT
from nadi.client.tables.table import ANY_VERSION as ANY_VERSION
from nadi.client.tables.table import TableValue as TableValue
from nadi.client.writing.ack import Ack as Ack
from nadi.model.cutorder import CutOrder as CutOrder
from nadi.model.event_time import EventTime as EventTime
from nadi.model.readergroup import StreamDataRetention as StreamDataRetention
from nadi.model.scrub import ScrubPass as ScrubPass
from nadi.model.scrub import ScrubReport as ScrubReport
from nadi.model.segments import SegmentRange as SegmentRange
