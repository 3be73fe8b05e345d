"""A fake segment store and controller in memory, for the client's tests.

The store speaks the real protocol on a loopback socket, through the real server code (`tests.support.memory_store`).
`Chaos` decides from a seed when it drops a connection: before an append is stored, or between storing and
acknowledging it. The controller answers the client's protobuf messages without a socket.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from msgspec.structs import replace

from nadi.client.control.calls import UnsupportedCallError
from nadi.client.control.controller import ControllerClient
from nadi.errors import DamagedDataError, InvalidStreamCutError, NotFoundError
from nadi.model.frontier import check_legal
from nadi.model.keyspace import equal_ranges
from nadi.model.segments import SegmentRange, share_keys
from nadi.naming import segment_epoch, segment_id, segment_name, transaction_segment_name
from nadi.segmentstore.server.connection import Connection
from nadi.wire import commands as wire
from nadi.wire.errors import damage_reply
from nadi.wire.rpc import controller_pb2 as pb
from tests.support.memory_store import MemoryStore


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


class FakeStore(MemoryStore):
    """The store in memory on a socket, with faults."""

    def __init__(self, chaos: Chaos | None = None) -> None:
        super().__init__()
        self.chaos = chaos or Chaos()
        self.silent = False  # appends are neither stored nor answered
        self.refuses_appends = False  # each append ends the connection
        self.refuses_writers = False  # each SetupAppend ends the connection
        self.hold = False  # appends are stored and not answered
        self.refuses_reads = False  # each read ends the connection
        self.ignores_reads = False  # reads are not answered
        self.damage: list[tuple[int, int]] = []  # damaged ranges of every segment
        self.lies = False  # damage is reported with an end before its start
        self.appends: dict[str, list[int]] = {}  # by segment, the sizes of unconditional appends
        self.reads = 0
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def full(self) -> bool:
        return self.container.disk_full

    @full.setter
    def full(self, full: bool) -> None:
        self.container.disk_full = full

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _connected(self) -> FakeConnection:
        connection = cast("FakeConnection", self.connection(FakeConnection))
        connection.store = self
        connection.fake_replies()
        return connection

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_all()
        await asyncio.sleep(0)

    def drop_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def add(self, name: str) -> None:
        """Create the segment if it doesn't exist."""
        if name not in self.segments:
            self.create(name)


class FakeConnection(Connection):
    """The server's connection with the store's faults."""

    store: FakeStore

    def fake_replies(self) -> None:
        self._send = self.replies.send
        self.replies.send = self.send  # type: ignore[method-assign]
        self.replies.send_all = self.send_all  # type: ignore[method-assign]

    def receive(self, command: wire.Command) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.handle(command)

    def receive_appends(self, appends: list[wire.AppendBlockEnd]) -> None:
        for append in appends:
            self.receive(append)

    def handle(self, command: wire.Command) -> None:
        store, chaos = self.store, self.store.chaos
        match command:
            case wire.SetupAppend() if store.refuses_writers:
                self.abort()
            case wire.AppendBlockEnd() | wire.ConditionalAppend() | wire.ConditionalBlockEnd():
                if store.refuses_appends:
                    self.abort()
                elif store.silent:
                    pass
                elif not self._is_transient(command.writer_id) and chaos.random.random() < chaos.before:
                    self.abort()
                else:
                    if isinstance(command, wire.AppendBlockEnd):
                        segment = self.writers.sessions[command.writer_id].segment
                        store.appends.setdefault(segment, []).append(len(command.data))
                    super().receive(command)
            case wire.MergeSegments() if chaos.random.random() < chaos.before:
                self.abort()
            case wire.ReadSegment():
                store.reads += 1
                self.read(command)
            case _:
                super().receive(command)

    def _is_transient(self, writer: bytes) -> bool:
        return writer in self.writers.sessions and "#transient." in self.writers.sessions[writer].segment

    def send_all(self, commands: list[wire.DataAppended], *, now: bool) -> None:
        for command in commands:
            self.send(command)

    def send(self, command: wire.Command) -> None:
        store, chaos = self.store, self.store.chaos
        match command:
            case wire.DataAppended() if store.hold:
                return
            case wire.DataAppended() | wire.SegmentsMerged():
                is_small = isinstance(command, wire.DataAppended) and self._is_transient(command.writer_id)
                if not is_small and chaos.random.random() < chaos.after:
                    self.abort()
                    return
        self._send(command)

    def read(self, command: wire.ReadSegment) -> None:
        store, chaos, offset = self.store, self.store.chaos, command.offset
        most = min(command.suggested_length, chaos.largest_read)
        most = min([most, *(first - offset for first, _ in store.damage if first > offset)])
        damage = [(first, end) for first, end in store.damage if first <= offset < end]
        if store.refuses_reads:
            self.abort()
        elif store.ignores_reads:
            pass
        elif damage:
            first, end = damage[0]
            error = DamagedDataError(command.segment, first, 0 if store.lies else end, "it rusted")
            self.send(damage_reply(error, command.request_id))
        else:
            if chaos.seed and chaos.random.random() < 0.3:
                most = chaos.random.randint(1, most)
            super().receive(replace(command, suggested_length=most))


@dataclass
class FakeStream:
    """epochs: for each, {segment id: (low, high)}."""

    epochs: list[dict[int, tuple[float, float]]]
    head: dict[int, int]
    sealed: bool = False
    transactions: dict[int, str] = field(default_factory=dict)


class FakeController(ControllerClient):
    """A controller that answers in memory, with Pravega's RPCs alone. asked: the RPCs that were called."""

    def __init__(self, store: FakeStore) -> None:
        super().__init__("fake:1")
        self.store = store
        self.streams: dict[tuple[str, str], FakeStream] = {}
        self.asked: list[str] = []

    def add_stream(self, scope: str, stream: str, segments: int = 1) -> FakeStream:
        epoch = {segment_id(i): piece for i, piece in enumerate(equal_ranges(segments))}
        added = self.streams[scope, stream] = FakeStream([epoch], dict.fromkeys(epoch, 0))
        for number in epoch:
            self.store.add(segment_name(scope, stream, number))
        return added

    def rescale(self, scope: str, stream: str, sealed: list[int], ranges: list[tuple[float, float]]) -> list[int]:
        """Seal and replace segments in one step; return the new ids."""
        known = self.streams[scope, stream]
        epoch, number = len(known.epochs), max(i & 0xFFFF_FFFF for e in known.epochs for i in e) + 1
        new = {segment_id(number + i, epoch): piece for i, piece in enumerate(ranges)}
        unchanged = {i: piece for i, piece in known.epochs[-1].items() if i not in sealed}
        known.epochs.append(unchanged | new)
        for i in new:
            self.store.add(segment_name(scope, stream, i))
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
        answer = getattr(self, f"_{rpc}", None)
        if answer is None:
            raise UnsupportedCallError(f"a server of Pravega has no {rpc}")
        return answer(request)

    def _stream(self, info: pb.StreamInfo) -> FakeStream:
        stream = self.streams.get((info.scope, info.stream))
        if stream is None:
            raise NotFoundError("no such stream")
        return stream

    def _ranges(self, info: pb.StreamInfo, epoch: dict[int, tuple[float, float]]) -> list[pb.SegmentRange]:
        return [
            pb.SegmentRange(segmentId=pb.SegmentId(streamInfo=info, segmentId=i), minKey=low, maxKey=high)
            for i, (low, high) in epoch.items()
        ]

    def _getURI(self, request: pb.SegmentId) -> pb.NodeUri:
        return pb.NodeUri(endpoint="127.0.0.1", port=self.store.port)

    def _checkStreamExists(self, request: pb.StreamInfo) -> pb.ExistsResponse:
        return pb.ExistsResponse(exists=(request.scope, request.stream) in self.streams)

    def _getStreamConfiguration(self, request: pb.StreamInfo) -> pb.StreamConfig:
        self._stream(request)
        return pb.StreamConfig(streamInfo=request, scalingPolicy=pb.ScalingPolicy(minNumSegments=1))

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
            self.store.add(transaction_segment_name(parent, txn))
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
            self.store.merge(parent, transaction_segment_name(parent, txn))
        stream.transactions[txn] = "COMMITTED"
        return pb.TxnStatus()

    def _abortTransaction(self, request: pb.TxnRequest) -> pb.TxnStatus:
        info = request.streamInfo
        stream = self._stream(info)
        txn = request.txnId.highBits << 64 | request.txnId.lowBits
        for i in stream.epochs[txn >> 96]:
            parent = segment_name(info.scope, info.stream, i)
            name = transaction_segment_name(parent, txn)
            if name in self.store.segments:
                self.store.delete(name)
        stream.transactions[txn] = "ABORTED"
        return pb.TxnStatus()

    def _pingTransaction(self, request: pb.PingTxnRequest) -> pb.PingTxnStatus:
        return pb.PingTxnStatus()

    def _checkTransactionState(self, request: pb.TxnRequest) -> pb.TxnState:
        stream = self._stream(request.streamInfo)
        txn = request.txnId.highBits << 64 | request.txnId.lowBits
        return pb.TxnState(state=pb.TxnState.State.Value(stream.transactions.get(txn, "UNKNOWN")))
