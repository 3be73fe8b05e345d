"""The client for asyncio: `async with nadi.client.aio.StreamManager(uri) as manager: ...`."""

from __future__ import annotations

from nadi.client.bytestream.byte_reader import ByteStreamReader as ByteStreamReader
from nadi.client.bytestream.byte_writer import ByteStreamWriter as ByteStreamWriter
from nadi.client.definitions.stream_tables import StreamTables as StreamTables
from nadi.client.exports import *  # noqa: F403 - all of them
from nadi.client.indexstream.index_reader import IndexReader as IndexReader
from nadi.client.indexstream.index_reader import IndexWriter as IndexWriter
from nadi.client.manager.streams import StreamManager as StreamManager
from nadi.client.readergroup.group import ReaderGroup as ReaderGroup
from nadi.client.readergroup.manager import ReaderGroupManager as ReaderGroupManager
from nadi.client.readergroup.reader import EventReader as EventReader
from nadi.client.readergroup.values import GroupValueReader as GroupValueReader
from nadi.client.reading.reader import SliceReader as SliceReader
from nadi.client.serializers.registry import SchemaGroup as SchemaGroup
from nadi.client.serializers.values import TransactionalValueWriter as TransactionalValueWriter
from nadi.client.serializers.values import ValueReader as ValueReader
from nadi.client.serializers.values import ValueTransaction as ValueTransaction
from nadi.client.serializers.values import ValueWriter as ValueWriter
from nadi.client.state_sync.revisioned_stream import RevisionedStream as RevisionedStream
from nadi.client.state_sync.shared_state import Journal as Journal
from nadi.client.state_sync.shared_state import LeaderElection as LeaderElection
from nadi.client.state_sync.shared_state import SharedCounter as SharedCounter
from nadi.client.state_sync.shared_state import SharedMap as SharedMap
from nadi.client.state_sync.shared_state import SharedSet as SharedSet
from nadi.client.state_sync.shared_state import SharedState as SharedState
from nadi.client.state_sync.state_synchronizer import StateSynchronizer as StateSynchronizer
from nadi.client.stream_cuts.bookmark_store import Bookmarks as Bookmarks
from nadi.client.stream_cuts.cuts import StreamCuts as StreamCuts
from nadi.client.stream_cuts.slices import NamedSlices as NamedSlices
from nadi.client.tables.key_value_table import KeyValueTable as KeyValueTable
from nadi.client.tables.table import Table as Table
from nadi.client.writing.sender import EventWriter as EventWriter
from nadi.client.writing.transactions import Transaction as Transaction
from nadi.client.writing.transactions import TransactionalEventWriter as TransactionalEventWriter
