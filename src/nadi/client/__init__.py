"""The blocking client: scopes, streams, writers, readers, transactions, tables.

`nadi.client.aio` has the same classes for asyncio.
"""

from __future__ import annotations

from nadi.client.blocking.byte_file import ByteStreamReader as ByteStreamReader
from nadi.client.blocking.byte_file import ByteStreamWriter as ByteStreamWriter
from nadi.client.blocking.classes import Bookmarks as Bookmarks
from nadi.client.blocking.classes import EventReader as EventReader
from nadi.client.blocking.classes import EventWriter as EventWriter
from nadi.client.blocking.classes import GroupValueReader as GroupValueReader
from nadi.client.blocking.classes import IndexReader as IndexReader
from nadi.client.blocking.classes import IndexWriter as IndexWriter
from nadi.client.blocking.classes import Journal as Journal
from nadi.client.blocking.classes import KeyValueTable as KeyValueTable
from nadi.client.blocking.classes import LeaderElection as LeaderElection
from nadi.client.blocking.classes import NamedSlices as NamedSlices
from nadi.client.blocking.classes import ReaderGroup as ReaderGroup
from nadi.client.blocking.classes import ReaderGroupManager as ReaderGroupManager
from nadi.client.blocking.classes import Schemas as Schemas
from nadi.client.blocking.classes import SharedCounter as SharedCounter
from nadi.client.blocking.classes import SharedMap as SharedMap
from nadi.client.blocking.classes import SharedSet as SharedSet
from nadi.client.blocking.classes import SliceReader as SliceReader
from nadi.client.blocking.classes import StateSynchronizer as StateSynchronizer
from nadi.client.blocking.classes import StreamCuts as StreamCuts
from nadi.client.blocking.classes import StreamTables as StreamTables
from nadi.client.blocking.classes import Table as Table
from nadi.client.blocking.classes import Transaction as Transaction
from nadi.client.blocking.classes import TransactionalEventWriter as TransactionalEventWriter
from nadi.client.blocking.classes import TransactionalValueWriter as TransactionalValueWriter
from nadi.client.blocking.classes import ValueReader as ValueReader
from nadi.client.blocking.classes import ValueTransaction as ValueTransaction
from nadi.client.blocking.classes import ValueWriter as ValueWriter
from nadi.client.blocking.manager import StreamManager as StreamManager
from nadi.client.exports import *  # noqa: F403 - all of them
