"""A segment store and a controller with behaviour, in memory, for the client's tests.

The store speaks the real protocol on a loopback socket. `Chaos` says, from a seed, when it drops a
connection: before an append is stored, or after it and before it is acknowledged. The controller
answers the client's protobuf messages without a socket.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from nadi.client.control.controller import ControllerClient
from nadi.errors import DamagedDataError, InvalidStreamCutError, NotFoundError
from nadi.model.framing import frame_events
from nadi.model.frontier import check_legal
from nadi.model.keyspace import equal_ranges
from nadi.model.segments import SegmentRange, share_keys
from nadi.naming import segment_epoch, segment_id, segment_name, transaction_segment_name
from nadi.wire import commands as wire
from nadi.wire.append import append_parts
from nadi.wire.codec import encode
from nadi.wire.damage import damage_reply
from nadi.wire.decoder import Decoder
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, TableEntry
from nadi.wire.rpc import controller_pb2 as pb


@dataclass
class Chaos:
    """Chances, per append, that the connection is dropped."""

    seed: int = 0
    before: float = 0.0
    after: float = 0.0
    largest_read: int = 2 * 1024 * 1024
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)


@dataclass
class FakeSegment:
    data: bytearray = field(default_factory=bytearray)
    start: int = 0
    sealed: bool = False
    writers: dict[bytes, int] = field(default_factory=dict)
    appends: list[int] = field(default_factory=list)  # sizes


class FakeStore:
    def __init__(self, chaos: Chaos | None = None) -> None:
        self.chaos = chaos or Chaos()
        self.segments: dict[str, FakeSegment] = {}
        self.tables: dict[str, dict[bytes, tuple[int, bytes]]] = {}
        self.versions = 0
        self.connections: set[FakeConnection] = set()
        self.full = False
        self.silent = False  # appends are neither stored nor answered
        self.refuses_appends = False  # the connection ends by each append
        self.refuses_writers = False  # or by what comes before it, the writer's setup
        self.hold = False  # appends are stored and not answered
        self.refuses_reads = False  # the connection ends by each read
        self.ignores_reads = False  # reads are not answered
        self.damage: list[tuple[int, int]] = []  # of every segment: read up to, told, and gone past
        self.lies = False  # damage is said to end before it
        self.opened = 0
        self.reads = 0
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FakeConnection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_all()
        await asyncio.sleep(0)

    def drop_all(self) -> None:
        for connection in list(self.connections):
            connection.drop()

    def create(self, name: str) -> FakeSegment:
        return self.segments.setdefault(name, FakeSegment())

    def seal(self, name: str) -> None:
        self.segments[name].sealed = True
        self.wake_reads()

    def truncate(self, name: str, offset: int) -> None:
        self.segments[name].start = offset

    def wake_reads(self) -> None:
        for connection in list(self.connections):
            waiting, connection.waiting = connection.waiting, []
            for read in waiting:
                connection.read(read)


class FakeConnection(asyncio.Protocol):
    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.decoder = Decoder()
        self.waiting: list[wire.ReadSegment] = []
        self.sessions: dict[bytes, str] = {}
        self.acknowledged: dict[bytes, int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods alone
        self.store.connections.add(self)
        self.store.opened += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.store.connections.discard(self)

    def drop(self) -> None:
        self.transport.abort()
        self.store.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        for command in self.decoder.receive(data):
            if self.transport.is_closing():
                return
            self.handle(command)

    def reply(self, command: wire.Command) -> None:
        self.transport.write(encode(command))

    def handle(self, command: wire.Command) -> None:
        match command:
            case wire.Hello():
                self.reply(wire.Hello(17, 5))
            case wire.KeepAlive():
                self.reply(wire.KeepAlive())
            case wire.SetupAppend(request_id=rid, segment=name, writer_id=writer):
                if self.store.refuses_writers:
                    self.drop()
                    return
                segment = self.store.segments.get(name)
                if segment is None:
                    self.reply(wire.NoSuchSegment(rid, name))
                    return
                self.sessions[writer] = name
                last = segment.writers.get(writer, NO_VERSION)
                self.acknowledged[writer] = last
                self.reply(wire.AppendSetup(rid, name, writer, last))
            case wire.AppendBlockEnd():
                self.append(command)
            case wire.ReadSegment():
                self.store.reads += 1
                self.read(command)
            case wire.GetStreamSegmentInfo(request_id=rid, segment=name):
                segment = self.store.segments.get(name)
                if segment is None:
                    self.reply(wire.NoSuchSegment(rid, name))
                else:
                    self.reply(
                        wire.StreamSegmentInfo(
                            rid, name, True, segment.sealed, False, 0, len(segment.data), segment.start
                        )
                    )
            case wire.CreateTransientSegment(request_id=rid, parent_segment=name):
                self.store.opened += 1
                transient = f"{name}#transient.{self.store.opened:064x}"
                self.store.create(transient)
                self.reply(wire.SegmentCreated(rid, transient))
            case wire.ConditionalBlockEnd(data=data):
                self.conditional_append(command, bytes(data))
            case wire.ConditionalAppend(data=data):
                self.conditional_append(command, frame_events([bytes(data)]))
            case wire.GetSegmentAttribute(request_id=rid, segment=name, attribute_id=attribute):
                self.reply(wire.SegmentAttribute(rid, self.store.segments[name].writers.get(attribute, NO_VERSION)))
            case wire.MergeSegments():
                self.merge(command)
            case _:
                self.table(command)

    def merge(self, command: wire.MergeSegments) -> None:
        rid, target = command.request_id, self.store.segments[command.target]
        if target.sealed:
            self.reply(wire.SegmentIsSealed(rid, command.source))
            return
        if self.store.chaos.random.random() < self.store.chaos.before:
            self.drop()
            return
        target.data += self.store.segments.pop(command.source).data
        for update in command.attribute_updates:
            target.writers[update.attribute] = max(update.value, target.writers.get(update.attribute, NO_VERSION))
        if self.store.chaos.random.random() < self.store.chaos.after:
            self.drop()
        else:
            self.reply(wire.SegmentsMerged(rid, command.target, command.source, len(target.data)))

    def conditional_append(self, command: wire.ConditionalAppend | wire.ConditionalBlockEnd, data: bytes) -> None:
        chaos, writer, rid, number = self.store.chaos, command.writer_id, command.request_id, command.event_number
        name = self.sessions[writer]
        if self.store.refuses_appends:
            self.drop()
        if self.store.refuses_appends or self.store.silent:
            return
        if name not in self.store.segments:
            self.reply(wire.NoSuchSegment(rid, name))
            return
        segment, last = self.store.segments[name], self.acknowledged[writer]
        if "#transient." not in name and chaos.random.random() < chaos.before:
            self.drop()
            return
        if segment.sealed:
            self.reply(wire.SegmentIsSealed(rid, name, "", number))
            return
        if self.store.full:
            self.reply(wire.ErrorMessage(rid, name, "the disk is full", wire.STORAGE_FULL))
            self.drop()
            return
        stored = segment.writers.get(writer, NO_VERSION)
        assert number > stored
        after = command.after_event_number if isinstance(command, wire.ConditionalBlockEnd) else NO_VERSION
        if command.expected_offset != len(segment.data) or after not in (NO_VERSION, stored):
            self.reply(wire.ConditionalCheckFailed(writer, number, rid))
            return
        segment.data += data
        segment.writers[writer] = self.acknowledged[writer] = number
        if "#transient." not in name and chaos.random.random() < chaos.after:
            self.drop()
            return
        self.reply(wire.DataAppended(writer, number, last, rid, len(segment.data)))

    def append(self, command: wire.AppendBlockEnd) -> None:
        store, chaos = self.store, self.store.chaos
        writer, rid = command.writer_id, command.request_id
        name = self.sessions.get(writer)
        if store.refuses_appends:
            self.drop()
            return
        if store.silent or name is None:
            return  # after an error: silence, as for appends that were in the pipe
        segment = store.segments.get(name)
        if segment is None:
            self.sessions.pop(writer)
            self.reply(wire.NoSuchSegment(rid, name))
            return
        if segment.sealed:
            self.sessions.pop(writer)
            self.reply(wire.SegmentIsSealed(rid, name, "", command.last_event_number))
            return
        if store.full:
            self.sessions.pop(writer)
            self.reply(wire.ErrorMessage(rid, name, "the disk is full", wire.STORAGE_FULL))
            return
        if chaos.random.random() < chaos.before:
            self.drop()
            return
        assert command.last_event_number > segment.writers.get(writer, NO_VERSION)
        data = b"".join(bytes(part) for part in append_parts(None, command))
        segment.data += data
        segment.appends.append(len(data))
        segment.writers[writer] = command.last_event_number
        if chaos.random.random() < chaos.after:
            self.drop()
        elif not store.hold:
            previous = self.acknowledged[writer]
            self.acknowledged[writer] = command.last_event_number
            self.reply(wire.DataAppended(writer, command.last_event_number, previous, rid, len(segment.data)))
        store.wake_reads()

    def read(self, command: wire.ReadSegment) -> None:
        segment, offset, rid = self.store.segments.get(command.segment), command.offset, command.request_id
        most = min(command.suggested_length, self.store.chaos.largest_read)
        most = min([most, *(first - offset for first, _ in self.store.damage if first > offset)])
        damage = [(first, end) for first, end in self.store.damage if first <= offset < end]
        if self.store.refuses_reads:
            self.drop()
        elif self.store.ignores_reads:
            pass
        elif damage:
            first, end = damage[0]
            error = DamagedDataError(command.segment, first, 0 if self.store.lies else end, "it rusted")
            self.reply(damage_reply(error, rid))
        elif segment is None:
            self.reply(wire.NoSuchSegment(rid, command.segment, "", offset))
        elif offset < segment.start:
            self.reply(wire.SegmentIsTruncated(rid, command.segment, segment.start, "", offset))
        elif offset >= len(segment.data) and not segment.sealed:
            self.waiting.append(command)
        else:
            if self.store.chaos.seed and self.store.chaos.random.random() < 0.3:
                most = self.store.chaos.random.randint(1, most)
            data = bytes(segment.data[offset : offset + most])
            ends = segment.sealed and offset + len(data) == len(segment.data)
            at_tail = not segment.sealed and offset + len(data) == len(segment.data)
            self.reply(wire.SegmentRead(command.segment, offset, at_tail, ends, data, rid))

    def table(self, command: wire.Command) -> None:
        tables = self.store.tables
        match command:
            case wire.CreateTableSegment(request_id=rid, segment=name):
                if name in tables:
                    self.reply(wire.SegmentAlreadyExists(rid, name))
                else:
                    tables[name] = {}
                    self.reply(wire.SegmentCreated(rid, name))
            case wire.ReadTable(request_id=rid, segment=name, keys=keys):
                found = []
                for key in keys:
                    version, value = tables[name].get(key.key, (NOT_EXISTS, b""))
                    found.append(TableEntry(key.key, version, value))
                self.reply(wire.TableRead(rid, name, tuple(found)))
            case wire.UpdateTableEntries(request_id=rid, segment=name, entries=entries):
                for entry in entries:
                    version = tables[name].get(entry.key, (NOT_EXISTS, b""))[0]
                    if entry.version not in (NO_VERSION, version):
                        self.reply(wire.TableKeyBadVersion(rid, name))
                        return
                versions = []
                for entry in entries:
                    self.store.versions += 1
                    tables[name][entry.key] = (self.store.versions, entry.value)
                    versions.append(self.store.versions)
                self.reply(wire.TableEntriesUpdated(rid, tuple(versions)))
            case wire.RemoveTableKeys(request_id=rid, segment=name, keys=keys):
                tables[name].pop(keys[0].key, None)
                self.reply(wire.TableKeysRemoved(rid, name))
            case _:
                raise AssertionError(f"the fake store does not know {command}")


@dataclass
class FakeStream:
    """epochs: for each, {segment id: (low, high)}."""

    epochs: list[dict[int, tuple[float, float]]]
    head: dict[int, int]
    sealed: bool = False
    transactions: dict[int, str] = field(default_factory=dict)


class FakeController(ControllerClient):
    def __init__(self, store: FakeStore) -> None:
        super().__init__("fake:1")
        self.store = store
        self.streams: dict[tuple[str, str], FakeStream] = {}
        self.asked: list[str] = []

    def add_stream(self, scope: str, stream: str, segments: int = 1) -> FakeStream:
        epoch = {segment_id(i): piece for i, piece in enumerate(equal_ranges(segments))}
        added = self.streams[scope, stream] = FakeStream([epoch], dict.fromkeys(epoch, 0))
        for number in epoch:
            self.store.create(segment_name(scope, stream, number))
        return added

    def rescale(self, scope: str, stream: str, sealed: list[int], ranges: list[tuple[float, float]]) -> list[int]:
        """Seal and replace segments at once; the new ids."""
        known = self.streams[scope, stream]
        epoch, number = len(known.epochs), max(i & 0xFFFF_FFFF for e in known.epochs for i in e) + 1
        new = {segment_id(number + i, epoch): piece for i, piece in enumerate(ranges)}
        kept = {i: piece for i, piece in known.epochs[-1].items() if i not in sealed}
        known.epochs.append(kept | new)
        for i in new:
            self.store.create(segment_name(scope, stream, i))
        for i in sealed:
            self.store.seal(segment_name(scope, stream, i))
        return list(new)

    def seal_all(self, scope: str, stream: str) -> None:
        self.streams[scope, stream].sealed = True
        for i in self.streams[scope, stream].epochs[-1]:
            self.store.seal(segment_name(scope, stream, i))

    async def _send(self, rpc: str, request: Any, timeout_s: float) -> Any:
        await asyncio.sleep(0)
        self.asked.append(rpc)
        return getattr(self, f"_{rpc}")(request)

    def _stream(self, info: pb.StreamInfo) -> FakeStream:
        found = self.streams.get((info.scope, info.stream))
        if found is None:
            raise NotFoundError("no such stream")
        return found

    def _ranges(self, info: pb.StreamInfo, epoch: dict[int, tuple[float, float]]) -> list[pb.SegmentRange]:
        return [
            pb.SegmentRange(segmentId=pb.SegmentId(streamInfo=info, segmentId=i), minKey=low, maxKey=high)
            for i, (low, high) in epoch.items()
        ]

    def _getURI(self, request: pb.SegmentId) -> pb.NodeUri:
        return pb.NodeUri(endpoint="127.0.0.1", port=self.store.port)

    def _checkStreamExists(self, request: pb.StreamInfo) -> pb.ExistsResponse:
        return pb.ExistsResponse(exists=(request.scope, request.stream) in self.streams)

    def _getCurrentSegments(self, request: pb.StreamInfo) -> pb.SegmentRanges:
        stream = self._stream(request)
        epoch = {} if stream.sealed else stream.epochs[-1]
        return pb.SegmentRanges(segmentRanges=self._ranges(request, epoch))

    def _getEpochSegments(self, request: pb.GetEpochSegmentsRequest) -> pb.SegmentRanges:
        epochs = self._stream(request.streamInfo).epochs
        if request.epoch >= len(epochs):
            raise NotFoundError("no such epoch")
        return pb.SegmentRanges(segmentRanges=self._ranges(request.streamInfo, epochs[request.epoch]))

    def _getSegments(self, request: pb.GetSegmentsRequest) -> pb.SegmentsAtTime:
        info = request.streamInfo
        return pb.SegmentsAtTime(
            segments=[
                pb.SegmentsAtTime.SegmentLocation(segmentId=pb.SegmentId(streamInfo=info, segmentId=i), offset=offset)
                for i, offset in self._stream(info).head.items()
            ]
        )

    def _getSegmentsImmediatelyFollowing(self, request: pb.SegmentId) -> pb.SuccessorResponse:
        epochs = self._stream(request.streamInfo).epochs
        reply = pb.SuccessorResponse()
        for before, after in pairwise(epochs):
            if request.segmentId in before and request.segmentId not in after:
                own = SegmentRange(request.segmentId, *before[request.segmentId])
                for new in (SegmentRange(i, *piece) for i, piece in after.items()):
                    if share_keys(new, own):
                        entry = reply.segments.add()
                        entry.segment.CopyFrom(
                            self._ranges(request.streamInfo, {new.segment_id: (new.low, new.high)})[0]
                        )
                        entry.value.extend(j for j, old in before.items() if share_keys(SegmentRange(j, *old), new))
        return reply

    def _isStreamCutValid(self, request: pb.StreamCut) -> pb.StreamCutValidityResponse:
        segments = {
            i: SegmentRange(i, *piece)
            for epoch in self._stream(request.streamInfo).epochs
            for i, piece in epoch.items()
        }
        try:
            check_legal(request.cut, [segments[i] for i in request.cut], segments.values())
        except (InvalidStreamCutError, KeyError):
            return pb.StreamCutValidityResponse(response=False)
        return pb.StreamCutValidityResponse(response=True)

    def _getSegmentsBetween(self, request: pb.StreamCutRange) -> pb.StreamCutRangeResponse:
        epochs = self._stream(request.streamInfo).epochs
        low = min((segment_epoch(i) for i in getattr(request, "from")), default=0)
        high = max((segment_epoch(i) for i in request.to), default=len(epochs) - 1)
        ids = dict.fromkeys(i for epoch in epochs[low : high + 1] for i in epoch)
        return pb.StreamCutRangeResponse(
            segments=[pb.SegmentId(streamInfo=request.streamInfo, segmentId=i) for i in ids]
        )

    def _createTransaction(self, request: pb.CreateTxnRequest) -> pb.CreateTxnResponse:
        info = request.streamInfo
        stream = self._stream(info)
        epoch = len(stream.epochs) - 1
        txn = epoch << 96 | (len(stream.transactions) + 1)
        stream.transactions[txn] = "OPEN"
        for i in stream.epochs[-1]:
            parent = segment_name(info.scope, info.stream, i)
            self.store.create(transaction_segment_name(parent, txn))
        return pb.CreateTxnResponse(
            txnId=pb.TxnId(highBits=txn >> 64, lowBits=txn & (1 << 64) - 1),
            activeSegments=self._ranges(info, stream.epochs[-1]),
        )

    def _commitTransaction(self, request: pb.TxnRequest) -> pb.TxnStatus:
        info = request.streamInfo
        stream = self._stream(info)
        txn = request.txnId.highBits << 64 | request.txnId.lowBits
        if stream.transactions.get(txn) != "OPEN":
            return pb.TxnStatus(status=pb.TxnStatus.FAILURE)
        for i in stream.epochs[txn >> 96]:
            parent = segment_name(info.scope, info.stream, i)
            source = self.store.segments.pop(transaction_segment_name(parent, txn))
            self.store.segments[parent].data += source.data
        self.store.wake_reads()
        stream.transactions[txn] = "COMMITTED"
        return pb.TxnStatus()

    def _abortTransaction(self, request: pb.TxnRequest) -> pb.TxnStatus:
        info = request.streamInfo
        stream = self._stream(info)
        txn = request.txnId.highBits << 64 | request.txnId.lowBits
        for i in stream.epochs[txn >> 96]:
            parent = segment_name(info.scope, info.stream, i)
            self.store.segments.pop(transaction_segment_name(parent, txn), None)
        stream.transactions[txn] = "ABORTED"
        return pb.TxnStatus()

    def _pingTransaction(self, request: pb.PingTxnRequest) -> pb.PingTxnStatus:
        return pb.PingTxnStatus()

    def _checkTransactionState(self, request: pb.TxnRequest) -> pb.TxnState:
        stream = self._stream(request.streamInfo)
        txn = request.txnId.highBits << 64 | request.txnId.lowBits
        return pb.TxnState(state=pb.TxnState.State.Value(stream.transactions.get(txn, "UNKNOWN")))
