"""Every RPC, called by every user over gRPC: permissions, visible data, and tokens in replies."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from nadi.access.authentication import Gate
from nadi.access.permissions import Permission
from nadi.access.tokens import TokenKey
from nadi.controller.access import RULES, ControllerAccess
from nadi.controller.engine.workflows import BACKGROUND
from nadi.controller.grpc.server import SERVER_OPTIONS, add_controller
from nadi.model.reports import GROUP_LAG, RETENTION, SEGMENTS, STREAM_LAG
from nadi.wire.commands import Command
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc import reports_pb2
from nadi.wire.rpc.service import METHODS, OWN_METHODS, SCALER_METHODS, WATCHES, path
from tests.controller.fake_store import FakeStore
from tests.controller.support import new_controller

from .support import GRANTS, PASSWORD, users_file

READ, UPDATE = "READ", "READ_UPDATE"
KEY = TokenKey(b"k" * 64)

# what Pravega's controller requires: the kind of resource, the permission, and the permission of the reply's token
EVERY = METHODS | OWN_METHODS | SCALER_METHODS
EXPECTED: dict[str, tuple[str, str, str | None]] = {
    "getControllerServerList": ("none", "", None),
    "getControllerToBucketMapping": ("cluster", UPDATE, None),
    "createScope": ("cluster", UPDATE, None),
    "deleteScope": ("cluster", UPDATE, None),
    "deleteScopeRecursive": ("cluster", UPDATE, None),
    "listScopes": ("cluster", READ, None),
    "checkScopeExists": ("scope", READ, None),
    "listStreamsInScope": ("scope", READ, None),
    "listStreamsInScopeForTag": ("scope", READ, None),
    "listKeyValueTablesInScope": ("scope", READ, None),
    "createStream": ("scope", UPDATE, None),
    "createKeyValueTable": ("scope", UPDATE, None),
    "createReaderGroup": ("scope", READ, None),
    "updateReaderGroup": ("scope", READ, None),
    "deleteReaderGroup": ("scope", READ, None),
    "getReaderGroupConfig": ("reader-group", READ, None),
    "updateStream": ("stream", UPDATE, None),
    "truncateStream": ("stream", UPDATE, None),
    "sealStream": ("stream", UPDATE, None),
    "deleteStream": ("stream", UPDATE, None),
    "scale": ("stream", UPDATE, None),
    "checkScale": ("stream", READ, None),
    "checkStreamExists": ("stream", READ, None),
    "getStreamConfiguration": ("stream", READ, None),
    "report": ("stream", READ, None),
    "listQuotas": ("cluster", READ, None),
    "changeQuota": ("cluster", UPDATE, None),
    "shareQuotas": ("cluster", UPDATE, None),
    "commitTogether": ("stream", UPDATE, None),
    "findCommit": ("stream", READ, None),
    "beginTransactions": ("stream", UPDATE, None),
    "commitTransactions": ("stream", UPDATE, None),
    "awaitTransactions": ("stream", READ, None),
    "IsActive": ("stream", READ, None),
    "StreamIsActive": ("stream", READ, None),
    "GetMetricSpec": ("stream", READ, None),
    "GetMetrics": ("stream", READ, None),
    "getCurrentSegments": ("stream", UPDATE, UPDATE),
    "getSegments": ("stream", UPDATE, UPDATE),
    "getEpochSegments": ("stream", UPDATE, UPDATE),
    "getSegmentsBetween": ("stream", READ, READ),
    "getDelegationToken": ("stream", UPDATE, UPDATE),
    "getSegmentsImmediatlyFollowing": ("stream", READ, None),
    "getSegmentsImmediatelyFollowing": ("stream", READ, None),
    "getURI": ("stream", READ, None),
    "isSegmentValid": ("stream", READ, None),
    "isStreamCutValid": ("stream", READ, None),
    "createTransaction": ("stream", UPDATE, UPDATE),
    "commitTransaction": ("stream", UPDATE, None),
    "abortTransaction": ("stream", UPDATE, None),
    "pingTransaction": ("stream", UPDATE, None),
    "checkTransactionState": ("stream", READ, None),
    "listCompletedTransactions": ("stream", READ, None),
    "noteTimestampFromWriter": ("stream", UPDATE, None),
    "removeWriter": ("stream", UPDATE, None),
    "listSubscribers": ("stream", UPDATE, None),
    "updateSubscriberStreamCut": ("stream", UPDATE, None),
    "getCurrentSegmentsKeyValueTable": ("table", UPDATE, None),
    "deleteKeyValueTable": ("table", UPDATE, None),
    "getKeyValueTableConfiguration": ("table", READ, None),
}
HELD = {  # permissions of the users of GRANTS, by kind of resource, in the scope home
    "root": dict.fromkeys(("cluster", "scope", "stream", "reader-group", "table"), UPDATE),
    "reader": dict.fromkeys(("cluster", "scope", "stream", "reader-group", "table"), READ),
    "writer": {"scope": READ, "stream": UPDATE, "reader-group": UPDATE, "table": UPDATE},
    "stranger": {},
}
LEVELS = {"": 0, READ: 1, UPDATE: 2}


class CountingStore(FakeStore):
    """Counts the requests made for calls, without the controller's background work."""

    count = 0

    async def exchange(self, command: Command) -> Command:
        task = asyncio.current_task()
        self.count += task is None or task.get_name() != BACKGROUND
        return await super().exchange(command)


@dataclass
class Asker:
    channel: grpc.aio.Channel
    store: CountingStore
    gate: Gate

    async def ask(self, rpc: str, request: Any, user: str | None, password: str = PASSWORD) -> Any:
        header = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        return await self.send(rpc, request, header if user is not None else None)

    async def send(self, rpc: str, request: Any, header: str | None) -> Any:
        kind, reply = EVERY[rpc]
        metadata = (("authorization", header),) if header is not None else None
        kinds = {"request_serializer": kind.SerializeToString, "response_deserializer": reply.FromString}
        if rpc in WATCHES:
            return await anext(
                aiter(self.channel.unary_stream(path(rpc), **kinds)(request, timeout=60, metadata=metadata))
            )
        return await self.channel.unary_unary(path(rpc), **kinds)(request, timeout=60, metadata=metadata)

    async def code(self, rpc: str, request: Any, user: str | None, password: str = PASSWORD) -> tuple[str, str]:
        try:
            await self.ask(rpc, request, user, password)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        return "OK", ""


@asynccontextmanager
async def asking(folder: Path, **grants: str) -> AsyncIterator[Asker]:
    """Start a controller with access control. grants: of the users besides root, by default GRANTS."""
    store = CountingStore()
    controller = new_controller(store)
    await controller.start()
    gate = Gate(users_file(folder, {"root": GRANTS["root"], **grants} if grants else None))
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_controller(server, controller, ControllerAccess(gate, KEY))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Asker(channel, store, gate)
    finally:
        await server.stop(None)
        await controller.stop()
        gate.close()


def request_for(rpc: str, stream: str) -> Any:
    """Return a request of an RPC about `stream` (or a scope, group or table with this name) in the scope home."""
    request: Any = EVERY[rpc][0]()
    fill(request, "missing" if rpc in ("createScope", "deleteScope", "deleteScopeRecursive") else "home", stream)
    return request


def fill(message: Any, scope: str, stream: str) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.name == "scope" and field.type == field.TYPE_STRING:
            message.scope = scope
        elif field.name in ("stream", "kvtName", "readerGroup", "readerGroupName") and field.type == field.TYPE_STRING:
            setattr(message, field.name, stream)
        elif field.name == "scalerMetadata":
            message.scalerMetadata.update(scope=scope, stream=stream)
        elif field.type == field.TYPE_MESSAGE and not field.is_repeated:
            fill(getattr(message, field.name), scope, stream)
        elif field.name == "minNumSegments":
            message.minNumSegments = 1


async def prepare(asker: Asker) -> None:
    await asker.ask("createScope", pb.ScopeInfo(scope="home"), "root")
    for name in ("meters", "other"):
        info = pb.StreamInfo(scope="home", stream=name)
        config = pb.StreamConfig(streamInfo=info, scalingPolicy=pb.ScalingPolicy(minNumSegments=1))
        assert (await asker.ask("createStream", config, "root")).status == pb.CreateStreamStatus.SUCCESS


def test_every_rpc_has_a_rule_and_an_expectation() -> None:
    assert set(RULES) == {*METHODS, *OWN_METHODS, *SCALER_METHODS}
    assert set(EXPECTED) == set(EVERY)


async def test_every_rpc_rejects_users_without_permission(tmp_path: Path) -> None:
    async with asking(tmp_path) as asker:
        await prepare(asker)
        for rpc, (kind, permission, _) in EXPECTED.items():
            for user in (None, "unknown", "wrong", *GRANTS):
                if kind == "none":
                    expected = None
                elif user is None or user not in GRANTS:
                    expected = "UNAUTHENTICATED"
                elif LEVELS[HELD[user].get(kind, "")] < LEVELS[permission]:
                    expected = "PERMISSION_DENIED"
                else:
                    expected = None
                if expected is None and kind != "none" and user != "root":
                    continue  # tested below
                before = asker.store.count
                name, password = ("root", "no") if user == "wrong" else (user, PASSWORD)
                if expected is None:
                    stream = "absent"
                    code, details = await asker.code(rpc, request_for(rpc, stream), name, password)
                    assert code not in ("UNAUTHENTICATED", "PERMISSION_DENIED", "INTERNAL"), (rpc, user, details)
                    continue
                there = await asker.code(rpc, request_for(rpc, "meters"), name, password)
                absent = await asker.code(rpc, request_for(rpc, "absent"), name, password)
                assert there[0] == expected, (rpc, user, there)
                assert (there[0], there[1].replace("meters", "absent")) == absent, "the reply reveals what exists"
                assert asker.store.count == before, f"{rpc} queried the store for {user}"


@pytest.mark.parametrize("user", ["reader", "writer"])
async def test_permitted_rpcs_are_executed(tmp_path: Path, user: str) -> None:
    async with asking(tmp_path) as asker:
        await prepare(asker)
        for rpc, (kind, permission, _) in EXPECTED.items():
            if kind != "none" and LEVELS[HELD[user].get(kind, "")] >= LEVELS[permission]:
                code, details = await asker.code(rpc, request_for(rpc, "absent"), user)
                assert code not in ("UNAUTHENTICATED", "PERMISSION_DENIED", "INTERNAL"), (rpc, user, details)


async def test_tokens_in_replies(tmp_path: Path) -> None:
    async with asking(tmp_path) as asker:
        await prepare(asker)
        for rpc, (_, _, token) in EXPECTED.items():
            if "delegationToken" not in EVERY[rpc][1].DESCRIPTOR.fields_by_name or rpc.endswith("KeyValueTable"):
                continue
            request = request_for(rpc, "meters")
            if rpc == "createTransaction":
                request.lease = 10_000
            if rpc == "getSegmentsBetween":
                getattr(request, "from")[0] = 0
            text = (await asker.ask(rpc, request, "root")).delegationToken
            if token is None:
                assert text == "", rpc
            else:
                names = ["meters", "meters_kvtable"] if rpc == "getDelegationToken" else ["meters"]
                assert KEY.check(text).streams == {f"home/{name}": Permission[token] for name in names}, rpc


OPERATION = pb.StreamInfo.AccessOperation


async def test_the_access_operation_decides(tmp_path: Path) -> None:
    async with asking(tmp_path) as asker:
        await prepare(asker)

        def info(operation: Any, stream: str = "meters") -> Any:
            return pb.StreamInfo(scope="home", stream=stream, accessOperation=operation)

        for operation in (OPERATION.READ, OPERATION.NONE, OPERATION.ANY):
            text = (await asker.ask("getDelegationToken", info(operation), "reader")).delegationToken
            assert KEY.check(text).streams == {f"home/{n}": Permission.READ for n in ("meters", "meters_kvtable")}
        for operation in (OPERATION.UNSPECIFIED, OPERATION.WRITE, OPERATION.READ_WRITE):
            assert (await asker.code("getDelegationToken", info(operation), "reader"))[0] == "PERMISSION_DENIED"
            text = (await asker.ask("getDelegationToken", info(operation), "writer")).delegationToken
            assert KEY.check(text).streams == {
                f"home/{n}": Permission.READ_UPDATE for n in ("meters", "meters_kvtable")
            }
            # readers change the state of their group; Java's also request write access to the watermarks, to read them
            for internal, granted in (("_RGgroup", Permission.READ_UPDATE), ("_MARKmeters", Permission.READ)):
                text = (await asker.ask("getDelegationToken", info(operation, internal), "reader")).delegationToken
                assert KEY.check(text).streams == {f"home/{internal}": granted}
                assert (await asker.code("getDelegationToken", info(operation, internal), "stranger"))[0] == (
                    "PERMISSION_DENIED"
                )
        without_token = info(OPERATION.NONE)
        for rpc, request in (
            ("getCurrentSegments", without_token),
            ("getSegments", pb.GetSegmentsRequest(streamInfo=without_token)),
            ("getEpochSegments", pb.GetEpochSegmentsRequest(streamInfo=without_token)),
        ):
            assert (await asker.ask(rpc, request, "reader")).delegationToken == ""


async def test_listings_contain_only_readable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.limits.LIST_PAGE", 2)  # so that whole pages are hidden
    names = [f"s{n}" for n in range(9)]

    async def pages(asker: Asker, rpc: str, request: Any, field: str, user: str) -> list[str]:
        items: list[str] = []
        while True:
            reply = await asker.ask(rpc, request, user)
            page = [getattr(item, "stream", item) for item in getattr(reply, field)]
            if not page:
                return items
            items += page
            request.continuationToken.CopyFrom(reply.continuationToken)

    grants = "prn::/,READ;prn::/scope:home,READ;prn::/scope:home/stream:s3,READ;prn::/scope:home/stream:s7,READ"
    async with asking(tmp_path, some=grants) as asker:
        for scope in ("home", "den", *names):
            await asker.ask("createScope", pb.ScopeInfo(scope=scope), "root")
        for name in names:
            info = pb.StreamInfo(scope="home", stream=name)
            config = pb.StreamConfig(
                streamInfo=info, scalingPolicy=pb.ScalingPolicy(minNumSegments=1), tags=pb.Tags(tag=["t"])
            )
            await asker.ask("createStream", config, "root")
        home = pb.ScopeInfo(scope="home")
        everything = await pages(asker, "listStreamsInScope", pb.StreamsInScopeRequest(scope=home), "streams", "root")
        assert sorted(name for name in everything if not name.startswith("_")) == names
        for rpc, request in (
            ("listStreamsInScope", pb.StreamsInScopeRequest(scope=home)),
            ("listStreamsInScopeForTag", pb.StreamsInScopeWithTagRequest(scope=home, tag="t")),
        ):
            listed = await pages(asker, rpc, request, "streams", "some")
            assert {name for name in listed if not name.startswith("_")} == {"s3", "s7"}
            assert set(listed) <= {"s3", "s7", "_MARKs3", "_MARKs7"}
        assert await pages(asker, "listScopes", pb.ScopesRequest(), "scopes", "some") == ["home"]


async def test_malformed_credentials_fail_only_their_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = (
        "",
        "Basic",
        "Basic ???",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
        "Basic " + "A" * 20_000,
        "Bearer a.b.c",
        "Digest root",
        "x",
    )

    async with asking(tmp_path) as asker:
        await prepare(asker)
        failed = asker.gate.failed_logins
        for header in wrong:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asker.send("listScopes", pb.ScopesRequest(), header)
            assert caught.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED), header
        assert (await asker.code("listScopes", pb.ScopesRequest(), "root", "secret-guess"))[0] == "UNAUTHENTICATED"
        assert asker.gate.failed_logins >= failed + len(wrong) - 1
        assert (await asker.code("listScopes", pb.ScopesRequest(), "root"))[0] == "OK"
    assert "failed logins" in caplog.text
    assert "secret-guess" not in caplog.text
    assert PASSWORD not in caplog.text


async def test_invalid_names_do_not_match_other_resources(tmp_path: Path) -> None:
    async with asking(tmp_path, user="prn::/scope:home/stream:meters/*,READ_UPDATE") as asker:
        await prepare(asker)
        for scope, stream in (("home/stream:meters", "x"), ("other/../home", "meters"), ("*", "*"), ("", "")):
            request = pb.StreamInfo(scope=scope, stream=stream)
            code, _ = await asker.code("getDelegationToken", request, "user")
            assert code == "PERMISSION_DENIED"


async def test_rpc_without_a_rule_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, "createScope")
    async with asking(tmp_path) as asker:
        assert (await asker.code("createScope", pb.ScopeInfo(scope="x"), "root"))[0] == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    ("kind", "stream", "resource", "permission"),
    [
        (SEGMENTS, "s", "prn::/scope:home/stream:s", Permission.READ),
        (RETENTION, "s", "prn::/scope:home/stream:s", Permission.READ_UPDATE),
        (STREAM_LAG, "s", "prn::/scope:home/stream:s", Permission.READ_UPDATE),
        (GROUP_LAG, "_RGg", "prn::/scope:home/reader-group:g", Permission.READ),
    ],
)
def test_reports_that_name_groups_require_update(kind: str, stream: str, resource: str, permission: Permission) -> None:
    needed = RULES["report"].need(reports_pb2.ReportRequest(scope="home", stream=stream, kind=kind))
    assert needed is not None
    assert (needed.resource, needed.permission) == (resource, permission)
