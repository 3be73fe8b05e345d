"""Each kind of name over gRPC, the wire protocol and REST, with each right. The table deliberately repeats RIGHTS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from nadi.access.names import RIGHTS, NameKind, kind_of
from nadi.access.permissions import Permission
from nadi.access.tokens import TokenKey
from nadi.client import aio
from nadi.client.manager.streams import stores_of
from nadi.controller.access import RULES
from nadi.wire import commands as wire
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc.service import METHODS
from tests.segmentstore.harness import connect, open_store

from .support import PASSWORD, guarded, user, users_file
from .test_rpc_table import KEY, OPERATION, asking, request_for
from .test_store_tokens import commands

READ, UPDATE = Permission.READ, Permission.READ_UPDATE
_Tokens = tuple[Permission | None, Permission | None]
NO_TOKENS: _Tokens = (None, None)


@dataclass(frozen=True)
class Promise:
    """The rights on a name: the permission required on `resource` to look at it, end it and change it, and on the scope
    to create it; the permissions required for, and granted by, a token to read and one to write. wire: the token's
    permission required to read, write, truncate, seal, create and delete its segments, in this order. None: reserved
    for the server."""

    resource: str
    look: Permission | None
    end: Permission | None
    change: Permission | None
    create: Permission | None
    read: _Tokens
    write: _Tokens
    wire: tuple[Permission | None, ...]


_STREAM = "prn::/scope:home/stream:"
_GROUP = "prn::/scope:home/reader-group:g"
STREAM_NAMES = {
    "s": Promise(
        _STREAM + "s", READ, UPDATE, UPDATE, UPDATE, (READ, READ), (UPDATE, UPDATE),
        (READ, UPDATE, UPDATE, UPDATE, None, None),
    ),
    "_MARKs": Promise(
        _STREAM + "s", READ, UPDATE, None, None, (READ, READ), (READ, READ), (READ, None, None, None, None, None)
    ),
    "_RGg": Promise(
        _GROUP, READ, UPDATE, None, None, (READ, READ), (READ, UPDATE), (READ, UPDATE, UPDATE, None, None, None)
    ),
    "_RGg_kvtable": Promise(
        _GROUP, READ, None, None, None, (READ, READ), (READ, UPDATE), (READ, UPDATE, None, None, UPDATE, None)
    ),
    "s_kvtable": Promise(
        _STREAM + "s_kvtable", READ, None, None, None, (READ, READ), (UPDATE, UPDATE),
        (READ, UPDATE, None, None, UPDATE, UPDATE),
    ),
    **{
        name: Promise(
            _STREAM + name, READ, None, None, None, (READ, READ), (UPDATE, UPDATE),
            (READ, UPDATE, None, None, UPDATE, None),
        )
        for name in ("_bookmarks_kvtable", "_schemas_kvtable", "_streamtables_kvtable")
    },
}  # fmt: skip
SYSTEM = Promise("prn::/scope:_system", READ, None, None, None, NO_TOKENS, NO_TOKENS, (None,) * 6)
CLUSTER = Promise(
    "prn::/", UPDATE, None, None, None, NO_TOKENS, (UPDATE, UPDATE), (None, UPDATE, None, None, None, None)
)
AUDIT = Promise("prn::/audit", READ, None, None, None, (READ, READ), NO_TOKENS, (READ, None, None, None, None, None))
_ID = "00000000000000000000000000000001"
PARTS = {  # suffixes of a stream's segments; other names have no such segments
    f"#transaction.{_ID}": (UPDATE, UPDATE, None, None, None, None),
    f"#transient.{_ID}.{_ID}": (UPDATE, UPDATE, None, None, None, None),
}
NAMES = [*(("home", name) for name in STREAM_NAMES), *(("_system", n) for n in ("s", "_MARKs", "_RGg", "s_kvtable"))]
NAMES += [("_cluster", "scrub"), ("_system", "audit")]
UNKNOWN = [  # names that begin or end like internal names, or combine several
    *(("home", name) for name in (
        "_x", "_kvtable", "_RG", "_MARK", "_RG_kvtable", "_MARK_kvtable", "_RG_RGg", "_RG_RGg_kvtable",
        "_RGg_kvtable_kvtable", "_RG_MARKs", "_RG_MARKs_kvtable", "_RG_bookmarks_kvtable", "_MARK_MARKs", "_MARK_RGg",
        "_MARKs_kvtable", "_MARK_RGg_kvtable", "_bookmarks", "_schemas", "_bookmarks_kvtable_kvtable",
        "_bookmarksx_kvtable", "_x_kvtable", "__RGg", "_rgg", "_RGg ", "_RGg\n", "_RGg%2F", "_RGg/s_kvtable",
        "_RGgé_kvtable", "_system", "_transactions",
    )),
    *(("_other", name) for name in ("s", "s_kvtable", "_RGg_kvtable")), ("_cluster", "other"), ("_system2", "s"),
]  # fmt: skip
LOOKS = {
    "checkStreamExists", "getStreamConfiguration", "checkScale", "getURI", "isSegmentValid", "isStreamCutValid",
    "getSegmentsImmediatlyFollowing", "getSegmentsImmediatelyFollowing", "checkTransactionState",
    "listCompletedTransactions",
}  # fmt: skip
ENDS = {"sealStream", "deleteStream"}
CHANGES = {
    "updateStream", "truncateStream", "scale", "createTransaction", "commitTransaction", "abortTransaction",
    "pingTransaction", "noteTimestampFromWriter", "removeWriter", "listSubscribers", "updateSubscriberStreamCut",
}  # fmt: skip
BY_OPERATION = {"getCurrentSegments", "getSegments", "getEpochSegments", "getDelegationToken"}
OPERATIONS = [
    OPERATION.UNSPECIFIED, OPERATION.NONE, OPERATION.READ, OPERATION.WRITE, OPERATION.READ_WRITE, OPERATION.ANY
]  # fmt: skip


def promise(scope: str, name: str) -> Promise:
    if (scope, name) in UNKNOWN:
        return Promise(f"prn::/scope:{scope}/*", None, None, None, None, NO_TOKENS, NO_TOKENS, (None,) * 6)
    if (scope, name) == ("_system", "audit"):
        return AUDIT
    return {"_system": SYSTEM, "_cluster": CLUSTER}.get(scope) or STREAM_NAMES[name]


def test_every_kind_of_name_is_tested() -> None:
    assert {kind_of(scope, name) for scope, name in NAMES} == set(NameKind) - {NameKind.UNKNOWN}
    assert {kind_of(scope, name) for scope, name in UNKNOWN} == {NameKind.UNKNOWN}
    assert set(NameKind) == set(RIGHTS)
    with_streams = {rpc for rpc in METHODS if rpc in LOOKS | ENDS | CHANGES | BY_OPERATION | {"getSegmentsBetween"}}
    others = {rpc for rpc in METHODS if "Scope" in rpc or "ReaderGroup" in rpc or "KeyValue" in rpc} | {
        "getControllerServerList",
        "getControllerToBucketMapping",
        "createStream",
    }
    assert with_streams | others == set(METHODS) <= set(RULES)


def requests(rpc: str, scope: str, name: str) -> list[tuple[Any, Any]]:
    """Return requests of an RPC about the name, one for each access operation if that matters."""
    result = []
    for operation in OPERATIONS if rpc in BY_OPERATION else [None]:
        request = request_for(rpc, name)
        info = next(
            (getattr(request, field) for field in ("streamInfo", "stream") if _is_message(request, field)), request
        )
        if rpc == "noteTimestampFromWriter":
            info = request.position.streamInfo
        if rpc == "updateSubscriberStreamCut":
            info = request.streamCut.streamInfo
        assert info.stream == name, rpc
        info.scope = scope
        if operation is not None:
            info.accessOperation = operation
        result.append((request, operation))
    return result


def _is_message(request: Any, field: str) -> bool:
    descriptor = request.DESCRIPTOR.fields_by_name.get(field)
    return descriptor is not None and descriptor.type == descriptor.TYPE_MESSAGE


def needed(rpc: str, operation: int | None, rights: Promise) -> _Tokens:
    """Return the required permission, and the permission of the token in the reply."""
    if rpc in LOOKS:
        return rights.look, None
    if rpc in ENDS:
        return rights.end, None
    if rpc == "createTransaction":
        return rights.change, UPDATE
    if rpc in CHANGES:
        return rights.change, None
    if rpc == "getSegmentsBetween":
        return rights.read
    if rpc == "getDelegationToken":
        writes = operation in (OPERATION.UNSPECIFIED, OPERATION.WRITE, OPERATION.READ_WRITE)
        return rights.write if writes else rights.read
    return (rights.look, None) if operation == OPERATION.NONE else rights.write


@pytest.mark.parametrize(
    ("scope", "names"),
    [(scope, [name]) for scope, name in NAMES]
    # unknown names are all of one kind, see test_every_kind_of_name_is_tested
    + [(home, [name for of, name in UNKNOWN if of == home][::5]) for home in sorted({home for home, _ in UNKNOWN})],
)
async def test_rights_over_grpc(tmp_path: Path, scope: str, names: list[str]) -> None:
    """Rights depend only on the name's resource: even root has no others, and rights on neighbours give none."""
    rights = promise(scope, names[0])
    grants = {
        "reader": f"{rights.resource},READ",
        "owner": f"{rights.resource},READ_UPDATE",
        "neighbour": f"prn::/scope:{scope}/*,READ_UPDATE;{rights.resource},NONE",
        "root": "prn::*,READ_UPDATE",
    }
    levels = {"reader": READ, "owner": UPDATE, "neighbour": Permission.NONE, "root": UPDATE}

    async with asking(tmp_path, **grants) as asker:
        for rpc in sorted(LOOKS | ENDS | CHANGES | BY_OPERATION | {"getSegmentsBetween"}):
            for name, (request, operation) in ((each, pair) for each in names for pair in requests(rpc, scope, each)):
                need, granted = needed(rpc, operation, rights)
                for caller, level in levels.items():
                    before = asker.store.count
                    may = need is not None and level >= need
                    code, details = await asker.code(rpc, request, caller)
                    assert (code != "PERMISSION_DENIED") is may, (rpc, name, operation, caller, details)
                    assert may or asker.store.count == before, f"{rpc} queried the store for {caller}"
                    assert code not in ("UNAUTHENTICATED", "INTERNAL")
                    if may and granted is not None and rpc == "getDelegationToken":
                        text = (await asker.ask(rpc, request, caller)).delegationToken
                        streams = dict(KEY.check(text).streams)
                        assert streams.pop(f"{scope}/{name}") is granted, (rpc, operation, caller)
                        assert set(streams) == ({"home/s_kvtable"} if caller == "root" and name == "s" else set())


async def test_creation_requires_update_on_the_scope(tmp_path: Path) -> None:
    grants = {
        "reader": "prn::/scope:*,READ",
        "all-streams": "prn::/scope:home/*,READ_UPDATE;prn::/scope:_system/*,READ_UPDATE",
        "writer": "prn::/scope:home,READ_UPDATE;prn::/scope:_system,READ_UPDATE",
        "root": "prn::*,READ_UPDATE",
    }

    async with asking(tmp_path, **grants) as asker:
        await asker.ask("createScope", pb.ScopeInfo(scope="home"), "root")
        for scope, name in (*NAMES, *UNKNOWN):
            request = request_for("createStream", name)
            request.streamInfo.scope = scope
            for caller in grants:
                may = promise(scope, name).create is not None and caller in ("writer", "root")
                code, details = await asker.code("createStream", request, caller)
                assert (code != "PERMISSION_DENIED") is may, (scope, name, caller, code, details)
        for rpc, field in (("createKeyValueTable", "kvtName"), ("createReaderGroup", "readerGroupName")):
            request = request_for(rpc, "x")
            request.scope = "_system"
            if rpc == "createReaderGroup":
                request.startingStreamCuts.add(streamInfo=pb.StreamInfo(scope="home", stream="s"))
                request.maxOutstandingCheckpointRequest = 1
            else:
                request.partitionCount = request.primaryKeyLength = 1
            assert getattr(request, field) == "x"
            for caller in grants:
                assert (await asker.code(rpc, request, caller))[0] == "PERMISSION_DENIED", (rpc, caller)


@pytest.mark.parametrize("rpc", ["createReaderGroup", "updateReaderGroup"])
async def test_group_of_streams_that_its_creator_may_not_read_is_rejected(tmp_path: Path, rpc: str) -> None:
    async with asking(tmp_path, some="prn::/scope:home,READ;prn::/scope:home/stream:mine,READ") as asker:
        await asker.ask("createScope", pb.ScopeInfo(scope="home"), "root")
        for name in ("mine", "other"):
            await asker.ask("createStream", request_for("createStream", name), "root")
        for retention in (0, 1, 2):
            codes = []
            for number, stream in enumerate(("mine", "other", "absent")):
                request = request_for(rpc, f"g{retention}{number}")
                request.retentionType = retention
                request.maxOutstandingCheckpointRequest = 1
                request.startingStreamCuts.add(streamInfo=pb.StreamInfo(scope="home", stream=stream))
                codes.append((await asker.code(rpc, request, "some"))[0])
            assert codes == ["OK", "PERMISSION_DENIED", "PERMISSION_DENIED"], "the group's lag would reveal their sizes"
        subscribers = await asker.ask("listSubscribers", pb.StreamInfo(scope="home", stream="other"), "root")
        assert list(subscribers.subscribers) == []


# --- the segment store -----------------------------------------------------------------------------

READS = {
    wire.ReadSegment, wire.GetStreamSegmentInfo, wire.GetSegmentAttribute, wire.LocateOffset, wire.LocateMoment,
    wire.GetTableSegmentInfo, wire.ReadTable, wire.ReadTableKeys, wire.ReadTableEntries, wire.ReadTableEntriesDelta,
    wire.GetSegmentLoads, wire.LocateChunks, wire.ListMoments, wire.ListEventSizes,
}  # fmt: skip
WRITES = {
    wire.SetupAppend, wire.UpdateSegmentAttribute, wire.UpdateTableEntries, wire.RemoveTableKeys, wire.Scrub,
    wire.IndexTimes,
}  # fmt: skip
MERGES = {wire.MergeSegments, wire.MergeSegmentsBatch}
CREATES, DELETES = {wire.CreateSegment, wire.CreateTableSegment}, {wire.DeleteSegment, wire.DeleteTableSegment}
GROUPS: tuple[set[Any], ...] = (READS, WRITES, {wire.TruncateSegment}, {wire.SealSegment}, CREATES, DELETES)


@pytest.mark.parametrize(("scope", "name"), NAMES)
async def test_rights_over_the_wire(tmp_path: Path, scope: str, name: str) -> None:
    """A token for the name gives these rights, regardless of its issuer; a token for another name gives none."""
    key = TokenKey(b"k" * 64)
    others = [key.issue(scope, other, UPDATE) for _, other in NAMES if other != name]
    others += [key.issue("home" if scope == "_system" else "_system", name, UPDATE)]
    async with open_store(tmp_path, tokens=key) as (_, peer):
        parts = {"": promise(scope, name).wire} | (PARTS if name == "s" and scope == "home" else {})
        for part, needs in parts.items():
            segment = f"{scope}/{name}/0.#epoch.0{part}"
            for granted in (READ, UPDATE):
                for command in commands(key.issue(scope, name, granted), segment, segment):
                    kind = type(command)
                    if kind in MERGES | {wire.UpdateSegmentPolicy}:
                        continue  # merges are tested below
                    if kind is wire.CreateTransientSegment:  # only for streams and their transactions
                        is_parent = (scope, name) == ("home", "s") and "#transient" not in part
                        refused = isinstance(await peer.ask(command), wire.AuthTokenCheckFailed)
                        assert refused is not (is_parent and granted is UPDATE), command
                        continue
                    (need,) = [need for need, group in zip(needs, GROUPS, strict=True) if kind in group]
                    reply = await peer.ask(command)
                    refused = isinstance(reply, wire.AuthTokenCheckFailed)
                    assert refused is (need is None or granted < need), (segment, granted, command, reply)
            policy = wire.UpdateSegmentPolicy(7, segment, 0, 0, key.issue(scope, name, UPDATE))
            assert isinstance(await peer.ask(policy), wire.AuthTokenCheckFailed)
            for token in others:
                for command in commands(token, segment, segment):
                    assert isinstance(await peer.ask(command), wire.AuthTokenCheckFailed), command


@pytest.mark.parametrize(("scope", "name"), NAMES)
async def test_only_large_events_may_be_merged_into_their_stream(tmp_path: Path, scope: str, name: str) -> None:
    key = TokenKey(b"k" * 64)
    target = f"{scope}/{name}/0.#epoch.0"
    async with open_store(tmp_path, tokens=key) as (_, peer):
        transient, transaction = f"#transient.{_ID}.{_ID}", f"#transaction.{_ID}"
        mergeable = (transient, transaction + transient)
        for part in (*mergeable, transaction, "", ".#epoch.1", "#transient.1", transient + transient):
            for granted in (READ, UPDATE):
                token = key.issue(scope, name, granted)
                for command in (
                    wire.MergeSegments(7, target, target + part, token),
                    wire.MergeSegmentsBatch(7, target, (target + part,), token),
                ):
                    refused = isinstance(await peer.ask(command), wire.AuthTokenCheckFailed)
                    may = (scope, name, granted) == ("home", "s", UPDATE) and part in mergeable
                    assert refused is not may, command


HAND_MADE = (  # invalid segment names
    "home/_RGg_kvtable/anything", "home/_RGg_kvtable/0.#epoch.0/more", "home/_RGg_kvtable//0.#epoch.0",
    "home/_RGg_kvtable/0.#epoch.0#index", "home/_RGg_kvtable/00.#epoch.0", "home/_RGg_kvtable/0.#epoch.-1",
    "home/_RGg_kvtable/٠.#epoch.0", "home/_RGg_kvtable/0.#epoch.0\n", "home/_RGg_kvtable/0.#epoch.0#transaction.",
    "home/_RGg_kvtable/../_RGh_kvtable/0.#epoch.0", "home/_RGg_kvtable", "home/_RGg_kvtable/", "home/_RGg/0.#epoch.0/x",
    "home/_bookmarks_kvtable/anything", "home/s_kvtable/x/0.#epoch.0", "home/s_kvtable/0.#epoch.0.#epoch.0",
    "home/s_kvtable/0.#epoch.0#index", "home/s/0.#epoch.0#index", "home/s/0.#epoch.0#transient.x",
    f"home/s/0.#epoch.0#transaction.{_ID}#transaction.{_ID}", f"home/s/0.#epoch.0#transaction.{_ID}x",
    f"home/s/0.#epoch.0#transient.{_ID}.{_ID}#transient.{_ID}.{_ID}", f"home/s/#transaction.{_ID}",
    f"home/s/0.#epoch.0#transient.{_ID}.{_ID}#transaction.{_ID}", "home/s/../_RGg_kvtable/0.#epoch.0",
    *(f"{scope}/{name}/0.#epoch.0" for scope, name in UNKNOWN),
)  # fmt: skip


async def test_invalid_segment_names_over_the_wire_are_rejected(tmp_path: Path) -> None:
    """Every command, with tokens for all names that the segment name begins with."""
    key = TokenKey(b"k" * 64)
    async with open_store(tmp_path, tokens=key) as (_, peer):
        for segment in HAND_MADE:
            scope, name = segment.split("/")[:2]
            for granted in (READ, UPDATE):
                token = key.issue(scope, name, granted, "s", "s_kvtable", "_RGg", "_RGg_kvtable", "_bookmarks_kvtable")
                for command in commands(token, segment, segment):
                    reply = await peer.ask(command)
                    assert isinstance(reply, wire.AuthTokenCheckFailed), (command, reply)


async def test_clients_may_only_create_tables_of_one_segment(tmp_path: Path) -> None:
    key = TokenKey(b"k" * 64)
    async with open_store(tmp_path, tokens=key) as (_, peer):
        for name in ("_RGg_kvtable", "_bookmarks_kvtable", "_schemas_kvtable", "s_kvtable"):
            token = key.issue("home", name, UPDATE)
            for number in ("0.#epoch.0", "1.#epoch.0", "0.#epoch.1", "0"):
                segment = f"home/{name}/{number}"
                reply = await peer.ask(wire.CreateTableSegment(7, segment, token))
                assert isinstance(reply, wire.SegmentCreated) is (number == "0.#epoch.0"), (segment, reply)


# --- REST ------------------------------------------------------------------------------------------


def test_rights_over_rest(tmp_path: Path) -> None:
    config = {"scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}}
    with guarded(tmp_path, rest_port=0) as server, httpx.Client(base_url=server.rest_uri or "", timeout=60) as rest:
        grants = {"root": "prn::*,READ_UPDATE"}
        names = [*NAMES, ("home", "_x"), ("home", "_RG_RGg_kvtable"), ("_other", "s")]
        for number, scoped_name in enumerate(names):
            resource = promise(*scoped_name).resource
            grants[f"reader{number}"] = f"{resource},READ"
            grants[f"owner{number}"] = f"{resource},READ_UPDATE"
            grants[f"neighbour{number}"] = f"prn::/scope:{scoped_name[0]}/*,READ_UPDATE;{resource},NONE"
        users_file(tmp_path / "settings", grants)
        for number, (scope, name) in enumerate(names):
            rights = promise(scope, name)
            levels = {f"reader{number}": READ, f"owner{number}": UPDATE, f"neighbour{number}": Permission.NONE}
            for verb, path, body, need in (
                ("GET", "", None, rights.look),
                ("GET", "/scaling-events?from=0&to=1", None, rights.look),
                ("PUT", "", config, rights.change),
                ("PUT", "/state", {"streamState": "SEALED"}, rights.end),
                ("DELETE", "", None, rights.end),
            ):
                for caller, level in {**levels, "root": UPDATE}.items():
                    url = f"/v1/scopes/{scope}/streams/{name}{path}"
                    reply = rest.request(verb, url, json=body, auth=(caller, PASSWORD))
                    assert (reply.status_code != 403) is (need is not None and level >= need), (verb, url, caller)
                    assert reply.status_code < 500


def test_rights_on_the_system_scope_over_rest(tmp_path: Path) -> None:
    grants = {
        "root": "prn::*,READ_UPDATE",
        "some": "prn::/,READ_UPDATE;prn::/scope:home,READ_UPDATE",
        "all": "prn::/,READ;prn::/scope:*,READ_UPDATE",
    }
    with guarded(tmp_path, rest_port=0) as server, httpx.Client(base_url=server.rest_uri or "", timeout=60) as rest:
        users_file(tmp_path / "settings", grants)

        def code(verb: str, path: str, caller: str, **body: Any) -> int:
            return rest.request(verb, path, auth=(caller, PASSWORD), json=body or None).status_code

        assert code("POST", "/v1/scopes", "root", scopeName="home") == 201
        listed = {caller: rest.get("/v1/scopes", auth=(caller, PASSWORD)).json()["scopes"] for caller in grants}
        names = {caller: sorted(scope["scopeName"] for scope in scopes) for caller, scopes in listed.items()}
        assert names == {"root": ["_system", "home"], "some": ["home"], "all": ["_system", "home"]}
        for caller in ("root", "all"):
            assert code("GET", "/v1/scopes/_system", caller) == 200
            for kind in ("streams", "readergroups"):
                listing = rest.get(f"/v1/scopes/_system/{kind}", auth=(caller, PASSWORD)).json().popitem()[1]
                is_auditor = (caller, kind) == ("root", "streams")  # by prn::*
                assert [stream["streamName"] for stream in listing] == (["audit"] if is_auditor else [])
        assert code("GET", "/v1/scopes/_system", "some") == 403
        assert code("DELETE", "/v1/scopes/_system", "root") == 412
        stream = {"streamName": "x", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}}
        assert code("POST", "/v1/scopes/_system/streams", "root", **stream) == 403


# --- a complete server -----------------------------------------------------------------------------


async def test_reader_of_a_stream_can_not_change_its_watermarks(tmp_path: Path) -> None:
    grants = {"root": "prn::*,READ_UPDATE", "reader": "prn::/scope:home/stream:meters,READ"}
    segment = "home/_MARKmeters/0.#epoch.0"

    async def main(uri: str, store: tuple[str, int]) -> None:
        async with aio.StreamManager(uri, credentials=user("root")) as root:
            await root.create_scope("home")
            await root.create_stream("home", "meters", 1)
            async with aio.StreamManager(uri, credentials=user("reader")) as reader:
                token = await stores_of(reader).controller.delegation_token("home", "_MARKmeters", write=True)
            peer = await connect(store)
            for command in commands(token, segment, segment):
                if not isinstance(command, wire.ReadSegment):  # which may wait for the first watermark
                    refused = isinstance(await peer.ask(command), wire.AuthTokenCheckFailed)
                    assert refused is (type(command) not in READS), command
            assert (await peer.ask(wire.GetStreamSegmentInfo(1, segment, token))).exists
            peer.close()
            await root.seal_stream("home", "meters")
            await root.delete_stream("home", "meters")

    with guarded(tmp_path) as server:
        users_file(tmp_path / "settings", grants)
        await main(server.controller_uri, server.store_address)
