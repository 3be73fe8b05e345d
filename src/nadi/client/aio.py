"""The client for asyncio: `async with nadi.client.aio.StreamManager(uri) as manager: ...`."""

from __future__ import annotations

from nadi.client.batch import Ack
from nadi.client.controller import SegmentRange
from nadi.client.policy import RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.reader import Event, SliceReader
from nadi.client.security import Basic, Bearer
from nadi.client.serializers.registry import SchemaGroup
from nadi.client.streams import SegmentInfo, StreamInfo, StreamManager
from nadi.client.tables import ABSENT, ANY_VERSION, Table, TableValue
from nadi.client.transactions import Transaction, TransactionalEventWriter
from nadi.client.values import TransactionalValueWriter, ValueEvent, ValueReader, ValueTransaction, ValueWriter
from nadi.client.writer import EventWriter

__all__ = [
    "ABSENT",
    "ANY_VERSION",
    "Ack",
    "Basic",
    "Bearer",
    "Event",
    "EventWriter",
    "RetentionPolicy",
    "ScalingPolicy",
    "SchemaGroup",
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
    "TransactionalValueWriter",
    "ValueEvent",
    "ValueReader",
    "ValueTransaction",
    "ValueWriter",
]
