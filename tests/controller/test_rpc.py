"""The controller's gRPC interface over a real server on loopback, and the generated messages."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import grpc
import msgspec
import pytest
from google.protobuf import descriptor_pb2

import nadi.wire.rpc
from nadi.controller.engine import workflows
from nadi.controller.grpc.server import SERVER_OPTIONS, add_controller
from nadi.controller.state.metadata import StreamName
from nadi.limits import RPC_STREAMS_MAX
from nadi.model.reports import SEGMENTS, SegmentReport
from nadi.wire.commands import Command, CreateSegment
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc import externalscaler_pb2, reports_pb2, transactions_pb2
from nadi.wire.rpc.service import METHODS, path
from tests.support.waiting import until_async

from .fake_store import FakeStore
from .rpc import Call, code_of, served
from .support import new_controller

INFO = pb.StreamInfo(scope="home", stream="meters")


def config(segments: int = 2, **more: Any) -> Any:
    return pb.StreamConfig(streamInfo=INFO, scalingPolicy=pb.ScalingPolicy(minNumSegments=segments), **more)


async def prepare(call: Call, segments: int = 2) -> None:
    assert (await call("createScope", pb.ScopeInfo(scope="home"))).status == pb.CreateScopeStatus.SUCCESS
    assert (await call("createStream", config(segments))).status == pb.CreateStreamStatus.SUCCESS


async def leaves(call: Call, rpc: str, request: Any, field: str, value: int) -> int:
    """Call until a field of the reply has another value."""
    for _ in range(500):
        value_now = int(getattr(await call(rpc, request), field))
        if value_now != value:
            return value_now
        await asyncio.sleep(0.005)
    raise AssertionError(f"{rpc} stays at {value}")


async def test_internal_scope_is_listed_and_rejects_creations() -> None:
    async with served() as (call, store, _controller):
        system = pb.ScopeInfo(scope="_system")
        assert list((await call("listScopes", pb.ScopesRequest())).scopes) == ["_system"]
        assert (await call("checkScopeExists", system)).exists
        for rpc, request, field in (
            ("listStreamsInScope", pb.StreamsInScopeRequest(scope=system), "streams"),
            ("listKeyValueTablesInScope", pb.KVTablesInScopeRequest(scope=system), "kvtables"),
        ):
            reply = await call(rpc, request)
            assert (list(getattr(reply, field)), reply.status) == ([], reply.SUCCESS)
        assert (await call("createScope", system)).status == pb.CreateScopeStatus.SCOPE_EXISTS
        assert (await call("deleteScope", system)).status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY
        stream, tables = config(), pb.KeyValueTableConfig(scope="_system", kvtName="t", partitionCount=1)
        stream.streamInfo.scope = "_system"
        group = pb.ReaderGroupConfiguration(scope="_system", readerGroupName="g")
        before = {name: dict(table.entries) for name, table in store.tables.items()}
        for rpc, asked in (
            ("createStream", stream),
            ("createKeyValueTable", tables),
            ("createReaderGroup", group),
            ("deleteScopeRecursive", system),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(rpc, asked)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED, rpc  # which no client retries
        assert {name: dict(table.entries) for name, table in store.tables.items()} == before


async def test_scopes_and_streams() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        again = pb.CreateScopeStatus.SCOPE_EXISTS, pb.CreateScopeStatus.INVALID_SCOPE_NAME
        assert (await call("createScope", pb.ScopeInfo(scope="home"))).status == again[0]
        for bad in ("", "a_b", "a/b"):
            assert (await call("createScope", pb.ScopeInfo(scope=bad))).status == again[1]
            assert not (await call("checkScopeExists", pb.ScopeInfo(scope=bad))).exists
        status = pb.CreateStreamStatus
        assert (await call("createStream", config())).status == status.STREAM_EXISTS
        wrong = config()
        wrong.streamInfo.stream = "a_b"
        assert (await call("createStream", wrong)).status == status.INVALID_STREAM_NAME
        wrong.streamInfo.CopyFrom(pb.StreamInfo(scope="none", stream="x"))
        assert (await call("createStream", wrong)).status == status.SCOPE_NOT_FOUND
        page = await call("listStreamsInScope", pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="home")))
        assert sorted(s.stream for s in page.streams) == ["_MARKmeters", "meters"]
        following = pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="home"), continuationToken=page.continuationToken)
        end = await call("listStreamsInScope", following)
        assert not end.streams
        assert end.HasField("continuationToken")
        missing = await call("listStreamsInScope", pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="none")))
        assert missing.status == pb.StreamsInScopeResponse.SCOPE_NOT_FOUND
        assert sorted((await call("listScopes", pb.ScopesRequest())).scopes) == ["_system", "home"]
        assert (await call("checkStreamExists", INFO)).exists
        node = await call("getURI", pb.SegmentId(streamInfo=pb.StreamInfo(scope="x", stream="rg_kvtable")))
        assert (node.endpoint, node.port) == ("127.0.0.1", 12345)
        assert (await call("getControllerServerList", pb.ServerRequest())).nodeURI[0].port == 9090
        assert (await call("getDelegationToken", INFO)).delegationToken == ""
        assert (await call("deleteScope", pb.ScopeInfo(scope="home"))).status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY
        assert (await call("deleteStream", INFO)).status == pb.DeleteStreamStatus.STREAM_NOT_SEALED
        assert (await call("sealStream", INFO)).status == pb.UpdateStreamStatus.SUCCESS
        assert (await call("sealStream", INFO)).status == pb.UpdateStreamStatus.SUCCESS
        assert (await call("updateStream", config())).status == pb.UpdateStreamStatus.STREAM_SEALED
        assert not (await call("getCurrentSegments", INFO)).segmentRanges
        assert (await call("deleteStream", INFO)).status == pb.DeleteStreamStatus.SUCCESS
        assert (await call("deleteStream", INFO)).status == pb.DeleteStreamStatus.STREAM_NOT_FOUND
        assert (await call("deleteScope", pb.ScopeInfo(scope="home"))).status == pb.DeleteScopeStatus.SUCCESS


async def test_configuration_is_echoed() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        echoed = await call("getStreamConfiguration", INFO)
        assert echoed.streamInfo == INFO
        assert echoed.scalingPolicy.minNumSegments == 2
        assert not echoed.HasField("retentionPolicy")
        full = pb.StreamConfig(
            streamInfo=INFO,
            scalingPolicy=pb.ScalingPolicy(
                scaleType=pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC, targetRate=9, scaleFactor=3, minNumSegments=2
            ),
            retentionPolicy=pb.RetentionPolicy(
                retentionType=pb.RetentionPolicy.SIZE, retentionParam=7, retentionMax=(1 << 63) - 1
            ),
            tags=pb.Tags(tag=["a", "b"]),
            timestampAggregationTimeout=5,
            rolloverSizeBytes=6,
        )
        assert (await call("updateStream", full)).status == pb.UpdateStreamStatus.SUCCESS
        assert await call("getStreamConfiguration", INFO) == full
        request = pb.StreamsInScopeWithTagRequest(scope=pb.ScopeInfo(scope="home"), tag="b")
        assert [s.stream for s in (await call("listStreamsInScopeForTag", request)).streams] == ["meters"]
        bad = config(0)
        assert await code_of(call("createStream", bad)) is grpc.StatusCode.INVALID_ARGUMENT


async def test_segments_scale_and_cuts() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        ranges = (await call("getCurrentSegments", INFO)).segmentRanges
        assert [(r.segmentId.segmentId, r.minKey, r.maxKey) for r in ranges] == [(0, 0.0, 0.5), (1, 0.5, 1.0)]
        assert all(r.segmentId.streamInfo.stream == "meters" for r in ranges)
        entry = pb.ScaleRequest.KeyRangeEntry
        request = pb.ScaleRequest(
            streamInfo=INFO, sealedSegments=[0, 1], newKeyRanges=[entry(start=0.0, end=0.3), entry(start=0.3, end=1.0)]
        )
        started = await call("scale", request)
        assert (started.status, started.epoch, len(started.segments)) == (pb.ScaleResponse.STARTED, 0, 2)
        check = pb.ScaleStatusRequest(streamInfo=INFO, epoch=0)
        assert await leaves(call, "checkScale", check, "status", 0) == pb.ScaleStatusResponse.SUCCESS
        assert (await call("scale", request)).status == pb.ScaleResponse.PRECONDITION_FAILED
        later = pb.ScaleStatusRequest(streamInfo=INFO, epoch=5)
        assert (await call("checkScale", later)).status == pb.ScaleStatusResponse.INVALID_INPUT
        new = [s.segmentId.segmentId for s in started.segments]
        old = pb.SegmentId(streamInfo=INFO, segmentId=1)
        for rpc in ("getSegmentsImmediatelyFollowing", "getSegmentsImmediatlyFollowing"):
            found = await call(rpc, old)
            assert [(s.segment.segmentId.segmentId, list(s.value)) for s in found.segments] == [
                (new[0], [0]),
                (new[1], [0, 1]),
            ][1:]
        head = await call("getSegments", pb.GetSegmentsRequest(streamInfo=INFO, timestamp=1 << 40))
        assert {s.segmentId.segmentId: s.offset for s in head.segments} == {0: 0, 1: 0}
        first = await call("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=INFO, epoch=0))
        assert len(first.segmentRanges) == 2
        span = pb.StreamCutRange(streamInfo=INFO, to={new[0]: 0, new[1]: 0})
        assert len((await call("getSegmentsBetween", span)).segments) == 4
        empty = pb.StreamCutRange(streamInfo=INFO)
        assert await code_of(call("getSegmentsBetween", empty)) is grpc.StatusCode.INVALID_ARGUMENT
        cut = pb.StreamCut(streamInfo=INFO, cut={0: 0, new[1]: -1, 1: 3})
        assert (await call("isStreamCutValid", cut)).response
        assert not (await call("isStreamCutValid", pb.StreamCut(streamInfo=INFO, cut={0: 0}))).response
        assert (await call("isSegmentValid", pb.SegmentId(streamInfo=INFO, segmentId=new[0]))).response
        assert not (await call("isSegmentValid", old)).response
        truncate = pb.StreamCut(streamInfo=INFO, cut={new[0]: 0, new[1]: 0})
        assert (await call("truncateStream", truncate)).status == pb.UpdateStreamStatus.SUCCESS
        assert await code_of(call("truncateStream", cut)) is grpc.StatusCode.INVALID_ARGUMENT


async def test_transactions() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        transaction = await call("createTransaction", pb.CreateTxnRequest(streamInfo=INFO, lease=90_000))
        assert transaction.txnId.lowBits >= 0
        assert len(transaction.activeSegments) == 2
        request = pb.TxnRequest(streamInfo=INFO, txnId=transaction.txnId, writerId="7", timestamp=-(1 << 63))
        assert (await call("checkTransactionState", request)).state == pb.TxnState.OPEN
        ping = pb.PingTxnRequest(streamInfo=INFO, txnId=transaction.txnId, lease=90_000)
        assert (await call("pingTransaction", ping)).status == pb.PingTxnStatus.OK
        assert (await call("commitTransaction", request)).status == pb.TxnStatus.SUCCESS
        state = await leaves(call, "checkTransactionState", request, "state", pb.TxnState.COMMITTING)
        assert state == pb.TxnState.COMMITTED
        assert (await call("commitTransaction", request)).status == pb.TxnStatus.SUCCESS
        assert (await call("pingTransaction", ping)).status == pb.PingTxnStatus.COMMITTED
        completed = await call("listCompletedTransactions", pb.ListCompletedTxnRequest(streamInfo=INFO))
        assert [(t.txnId, t.status) for t in completed.response] == [(transaction.txnId, pb.TxnResponse.COMMITTED)]
        unknown = pb.TxnRequest(streamInfo=INFO, txnId=pb.TxnId(highBits=0, lowBits=999_999))
        assert (await call("commitTransaction", unknown)).status == pb.TxnStatus.TRANSACTION_NOT_FOUND
        assert (await call("checkTransactionState", unknown)).state == pb.TxnState.UNKNOWN
        unknown.streamInfo.stream = "none"
        assert (await call("abortTransaction", unknown)).status == pb.TxnStatus.STREAM_NOT_FOUND
        short = pb.CreateTxnRequest(streamInfo=INFO, lease=1)
        assert await code_of(call("createTransaction", short)) is grpc.StatusCode.INVALID_ARGUMENT


async def test_several_transactions_by_one_call() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        stream = {"scope": INFO.scope, "stream": INFO.stream}
        request = transactions_pb2.BeginTransactionsRequest(**stream, leasesMs=[90_000, 90_000])
        begun = await call("beginTransactions", request)
        assert [(piece.segment, piece.low, piece.high) for piece in begun.segments] == [(0, 0.0, 0.5), (1, 0.5, 1.0)]
        first, second = begun.transactions
        unknown = (12345).to_bytes(16)
        kind = transactions_pb2.CommitTransactionsRequest
        commit = kind(**stream, transactions=[kind.Transaction(id=i) for i in (first, unknown)], writerId="7")
        committed = await call("commitTransactions", commit)
        assert (committed.status, list(committed.lost)) == (committed.SUCCESS, [unknown])
        wait = transactions_pb2.AwaitTransactionsRequest(**stream, transactions=[first], waitMs=60_000)
        states = transactions_pb2.TransactionStates
        assert (await call("awaitTransactions", wait)).states == [states.COMMITTED]
        wait.transactions[:] = [second, unknown]
        assert (await call("awaitTransactions", wait)).states == [states.UNFINISHED, states.UNKNOWN]
        for odd in (commit, wait, request):
            odd.stream = "none"
        assert (await call("commitTransactions", commit)).status == committed.STREAM_NOT_FOUND
        assert (await call("awaitTransactions", wait)).states == [states.UNKNOWN] * 2
        assert await code_of(call("beginTransactions", request)) is grpc.StatusCode.NOT_FOUND


async def test_waiting_call_has_a_limit_and_leaves_nothing_when_its_caller_disconnects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as (call, _store, controller):
        await prepare(call)
        leases = controller.transactions.leases
        begun = await controller.transactions.create(StreamName(INFO.scope, INFO.stream), 90_000)
        wait = transactions_pb2.AwaitTransactionsRequest(
            scope=INFO.scope, stream=INFO.stream, transactions=[begun.txn_id.to_bytes(16)], waitMs=600_000
        )
        monkeypatch.setattr("nadi.controller.grpc.service.TXN_WAIT_S", 60.0)
        waiting: asyncio.Future[Any] = asyncio.ensure_future(call("awaitTransactions", wait))
        await until_async(lambda: leases._waits)
        waiting.cancel()
        await until_async(lambda: not leases._waits)
        monkeypatch.setattr("nadi.controller.grpc.service.TXN_WAIT_S", 0.05)
        reply = await call("awaitTransactions", wait)
        assert reply.states == [transactions_pb2.TransactionStates.UNFINISHED]


async def test_no_rpc_answers_unknown() -> None:
    """Send empty and absurd requests to every RPC: the result is a reply, or a code that clients can handle."""

    async with served() as (call, _store, _controller):
        await prepare(call)
        codes = set()
        for rpc, (kind, _) in METHODS.items():
            odd = _with_stream(kind, "home/x/y"), _with_stream(kind, "meters")
            for request in (kind(), kind.FromString(b"\x0a\x00"), *odd):
                try:
                    await call(rpc, request)
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code())
        assert codes == {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT}
        missing = pb.StreamInfo(scope="home", stream="none")
        for rpc in ("getCurrentSegments", "getStreamConfiguration"):
            assert await code_of(call(rpc, missing)) is grpc.StatusCode.NOT_FOUND


_TEXTS = [
    "",
    "home",
    "meters",
    "readers",
    "home/readers",
    "_RGx",
    "a_b",
    "a/b",
    "x" * 300,
    "\0",
    "ä",
    "zz",
    str(UUID(int=7)),
]
_USUAL = {"scope": "home", "stream": "meters", "readerGroup": "readers", "readerGroupName": "readers", "kvtName": "x"}
_INTS = [0, 1, 2, 3, -1, 7, 1 << 32]
_DOUBLES = [0.0, 0.25, 0.5, 1.0, -1.0, float("nan"), float("inf")]


def _fill(message: Any, random: Random) -> Any:
    """Set fields to plausible and implausible values."""
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.1:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update({random.choice(_INTS): random.choice(_INTS) for _ in range(3)})
        elif field.message_type is not None and field.is_repeated:
            for _ in range(random.randrange(3)):
                _fill(getattr(message, field.name).add(), random)
        elif field.message_type is not None:
            _fill(getattr(message, field.name), random)
        else:
            value = _value(field, random)
            if field.is_repeated:
                getattr(message, field.name).extend([value] * random.randrange(3))
            else:
                setattr(message, field.name, value)
    return message


def _value(field: Any, random: Random) -> Any:
    if field.enum_type is not None:
        return random.choice([value.number for value in field.enum_type.values] + [99])
    if field.type == field.TYPE_STRING:
        return _USUAL[field.name] if field.name in _USUAL and random.random() < 0.9 else random.choice(_TEXTS)
    if field.type == field.TYPE_DOUBLE:
        return random.choice(_DOUBLES)
    if field.type == field.TYPE_BOOL:
        return random.random() < 0.5
    wide = field.type == field.TYPE_INT64
    return random.choice([*_INTS[:-1], (1 << 63) - 1 if wide else (1 << 31) - 1, -(1 << 63) if wide else -(1 << 31)])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))])
async def test_random_requests_get_sensible_codes(seed: int) -> None:
    """Send half-sensible requests to all RPCs in random order: no code makes clients wait or retry in vain."""

    answered: set[str] = set()
    allowed = grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT

    async with served() as (call, _store, _controller):
        random = Random(seed)
        for _ in range(15):
            await call("createScope", pb.ScopeInfo(scope="home"))  # in case it was deleted
            await call("createStream", config())
            for rpc in random.sample(sorted(METHODS), len(METHODS)):
                request = _fill(METHODS[rpc][0](), random)
                code = grpc.StatusCode.OK
                try:
                    await call(rpc, request)
                    answered.add(rpc)
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                assert code in allowed, f"{code} for {rpc}: {request}"
        assert len(answered) > 40, f"never answered: {set(METHODS) - answered}"


async def test_slow_workflow_times_out_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop_at_segments(command: Command) -> None:
        if isinstance(command, CreateSegment):
            stopped.set()
            await go_on.wait()

    stopped, go_on = asyncio.Event(), asyncio.Event()

    async with served() as (call, store, _controller):
        await prepare(call)
        store.before = stop_at_segments
        monkeypatch.setattr(workflows, "WORKFLOW_WAIT_S", 0.3)
        other = config()
        other.streamInfo.stream = "other"
        assert await code_of(call("createStream", other)) is grpc.StatusCode.DEADLINE_EXCEEDED
        await stopped.wait()
        assert (await call("checkStreamExists", other.streamInfo)).exists
        assert await code_of(call("getCurrentSegments", other.streamInfo)) is grpc.StatusCode.UNAVAILABLE
        go_on.set()
        monkeypatch.undo()
        assert (await call("createStream", other)).status == pb.CreateStreamStatus.STREAM_EXISTS
        assert len((await call("getCurrentSegments", other.streamInfo)).segmentRanges) == 2


def _with_stream(kind: Any, stream: str) -> Any:
    request = kind()
    if "streamInfo" in kind.DESCRIPTOR.fields_by_name:
        request.streamInfo.scope, request.streamInfo.stream = "home", stream
    return request


async def test_unreachable_store_maps_to_unavailable() -> None:
    async with served() as (call, store, _controller):
        await prepare(call)
        store.die_at(0)
        other = pb.StreamInfo(scope="home", stream="other")
        assert await code_of(call("getCurrentSegments", other)) is grpc.StatusCode.UNAVAILABLE
        assert len((await call("getCurrentSegments", INFO)).segmentRanges) == 2  # known without the store


async def test_full_disk_maps_to_resource_exhausted() -> None:
    async with served() as (call, store, _controller):
        store.full = True
        assert await code_of(call("createScope", pb.ScopeInfo(scope="home"))) is grpc.StatusCode.RESOURCE_EXHAUSTED
        store.full = False
        assert (await call("createScope", pb.ScopeInfo(scope="home"))).status == pb.CreateScopeStatus.SUCCESS


@pytest.mark.parametrize(
    ("proto", "module"),
    [
        ("controller", pb),
        ("reports", reports_pb2),
        ("transactions", transactions_pb2),
        ("externalscaler", externalscaler_pb2),
    ],
)
def test_the_generated_messages_agree_with_the_proto_file(tmp_path: Path, proto: str, module: Any) -> None:
    source = Path(nadi.wire.rpc.__file__).parents[3]
    made = tmp_path / "set.bin"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", f"--descriptor_set_out={made}"]
    subprocess.run([*command, f"nadi/wire/rpc/{proto}.proto"], check=True)
    regenerated = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file[0]
    committed = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(committed)
    for description in (regenerated, committed):
        _drop_json_names(description)
    assert committed == regenerated
    assert len(METHODS) == 47


def _drop_json_names(proto: Any) -> None:
    """Some versions of protoc spell out default JSON names, others don't."""

    def walk(message: Any) -> None:
        for field in message.field:
            field.ClearField("json_name")
        for nested in message.nested_type:
            walk(nested)

    for message in proto.message_type:
        walk(message)


async def test_malformed_request_maps_to_invalid_argument() -> None:
    """UNKNOWN would make the Python client stall for a minute."""

    controller = new_controller(FakeStore())
    await controller.start()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_controller(server, controller)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for rpc in METHODS:
            code = await code_of(channel.unary_unary(path(rpc))(b"\xd6\x82\x30", timeout=60))
            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED), rpc
    await server.stop(None)
    await controller.stop()


async def test_report_is_paged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.controller.reports.LIST_PAGE", 2)

    async with served() as (call, _store, _controller):
        await prepare(call, 5)
        request, ids = reports_pb2.ReportRequest(scope="home", stream="meters", kind=SEGMENTS), []
        while True:
            page = await call("report", request)
            ids += [record.segment_id for record in msgspec.json.decode(page.records, type=list[SegmentReport])]
            if not page.token:
                break
            request.token = page.token
        assert ids == [0, 1, 2, 3, 4]


async def test_report_of_a_replaced_segment_names_its_successors() -> None:
    """A report waits for lengths, and the stream may be scaled meanwhile."""

    async with served() as (call, _store, _controller):
        await prepare(call, 1)
        request = reports_pb2.ReportRequest(scope="home", stream="meters", kind=SEGMENTS)
        whole, segment = pb.ScaleRequest.KeyRangeEntry(start=0.0, end=1.0), 0
        for epoch in range(20):
            scaled = pb.ScaleRequest(streamInfo=INFO, sealedSegments=[segment], newKeyRanges=[whole])
            begun = asyncio.ensure_future(call("scale", scaled))
            for page in await asyncio.gather(*(call("report", request) for _ in range(30))):
                found = msgspec.json.decode(page.records, type=list[SegmentReport])
                assert sum(one.replaced_ms is None for one in found) == 1, found
            (made,) = (await begun).segments
            segment = made.segmentId.segmentId
            check = pb.ScaleStatusRequest(streamInfo=INFO, epoch=epoch)
            assert await leaves(call, "checkScale", check, "status", 0) == pb.ScaleStatusResponse.SUCCESS


@pytest.mark.parametrize(
    ("changed", "code", "value"),
    [
        ({"kind": "size"}, "INVALID_ARGUMENT", "'size'"),
        ({"token": "first"}, "INVALID_ARGUMENT", "'first'"),
        ({"stream": "missing"}, "NOT_FOUND", "missing"),
    ],
)
async def test_invalid_report_request_fails_with_code(changed: dict[str, str], code: str, value: str) -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        asked = {"scope": "home", "stream": "meters", "kind": SEGMENTS} | changed
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call("report", reports_pb2.ReportRequest(**asked))
        assert caught.value.code().name == code
        assert value in str(caught.value.details())


# --- hundreds of calls over one connection, as from a program that creates thousands of streams ------


_CALLS = 600


async def test_hundreds_of_calls_are_all_accepted() -> None:
    """The client holds calls back at the number that the server has announced. A call that has ended no longer counts,
    even if the server has yet to release it."""

    async with served() as (call, _store, _controller):
        numbers = iter(range(_CALLS))

        async def some(numbers: Iterator[int]) -> int:
            asked = 0
            for _ in numbers:
                reply = await call("checkScopeExists", pb.ScopeInfo(scope="home"))  # raises if it is rejected
                assert not reply.exists
                asked += 1
            return asked

        asked = await asyncio.gather(*(some(numbers) for _ in range(3 * RPC_STREAMS_MAX)))
        assert sum(asked) == _CALLS
