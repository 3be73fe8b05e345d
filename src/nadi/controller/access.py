"""What each RPC needs: one table, and the one place where every request is checked by it.

A rule says on which resource an RPC needs which permission, and with which permission the reply's
delegation token is issued, if it has one. Everything is taken from the request, before anything is
looked up, so that who may not see a stream is told the same whether it exists or not. Listings are
cut down to what the caller may read; as an empty page ends a listing, pages of which nothing is left
are passed over. An RPC without a rule is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from nadi.access.gate import Gate
from nadi.access.permissions import (
    CLUSTER,
    Caller,
    Permission,
    reader_group_resource,
    scope_resource,
    stream_resource,
    table_resource,
)
from nadi.access.tokens import TokenKey
from nadi.errors import PermissionDeniedError
from nadi.naming import CLUSTER_SCOPE, INTERNAL_SCOPE, MARK_PREFIX, READER_GROUP_PREFIX
from nadi.wire.commands import Command
from nadi.wire.rpc import controller_pb2 as pb

READ, UPDATE = Permission.READ, Permission.READ_UPDATE
_ACCESS = pb.StreamInfo.AccessOperation
_NO_TOKEN = Permission.NONE

Answer = Callable[[Any], Awaitable[Any]]
Exchange = Callable[[Command], Awaitable[Command]]


@dataclass(frozen=True, slots=True)
class Need:
    """A permission on a resource; `token` is the one that the reply's token is for, NONE for no token."""

    resource: str
    permission: Permission
    token: Permission = _NO_TOKEN


@dataclass(frozen=True, slots=True)
class Rule:
    """need: by the request; None if everybody may. stream: whose token the reply carries. visible: cuts a
    listing's reply down to what may be read, and says whether anything was in it and is no more."""

    need: Callable[[Any], Need | None]
    stream: Callable[[Any], Any] | None = None
    visible: Callable[[Any, Any, Caller], bool] | None = None


# --- resources ------------------------------------------------------------------------------------


def resource_of(scope: str, stream: str) -> str:
    """What a stream's name stands for: internal ones stand for what they serve."""
    if scope in (INTERNAL_SCOPE, CLUSTER_SCOPE):
        return CLUSTER
    if stream.startswith(READER_GROUP_PREFIX):
        return reader_group_resource(scope, stream.removeprefix(READER_GROUP_PREFIX))
    return stream_resource(scope, stream.removeprefix(MARK_PREFIX))


def _is_internal(stream: str) -> bool:
    return stream.startswith((READER_GROUP_PREFIX, MARK_PREFIX))


def _itself(request: Any) -> Any:
    return request


def _info(request: Any) -> Any:
    return request.streamInfo


def _everybody(_: Any) -> None:
    return None


def _cluster(permission: Permission) -> Callable[[Any], Need]:
    return lambda _: Need(CLUSTER, permission)


def _scope(
    permission: Permission, scope: Callable[[Any], str] = lambda request: str(request.scope)
) -> Callable[[Any], Need]:
    return lambda request: Need(scope_resource(scope(request)), permission)


def _stream(
    permission: Permission, info: Callable[[Any], Any] = _info, token: Permission = _NO_TOKEN
) -> Callable[[Any], Need]:
    def need(request: Any) -> Need:
        name = info(request)
        return Need(resource_of(name.scope, name.stream), permission, token)

    return need


def _table(permission: Permission) -> Callable[[Any], Need]:
    return lambda request: Need(table_resource(request.scope, request.kvtName), permission)


def _group(permission: Permission) -> Callable[[Any], Need]:
    return lambda request: Need(reader_group_resource(request.scope, request.readerGroup), permission)


def _by_operation(info: Callable[[Any], Any] = _info) -> Callable[[Any], Need]:
    """NONE only looks; anything else, and nothing at all, wants a token to write."""

    def need(request: Any) -> Need:
        name = info(request)
        resource = resource_of(name.scope, name.stream)
        if name.accessOperation == _ACCESS.NONE:
            return Need(resource, READ)
        return Need(resource, UPDATE, UPDATE)

    return need


def _delegation(request: Any) -> Need:
    writes = request.accessOperation in (_ACCESS.UNSPECIFIED, _ACCESS.WRITE, _ACCESS.READ_WRITE)
    token = UPDATE if writes else READ
    # who may read uses a reader group, and writes its state and the stream's marks by that
    needed = READ if _is_internal(request.stream) else token
    return Need(resource_of(request.scope, request.stream), needed, token)


def _creation(request: Any) -> Need:
    internal = _is_internal(request.streamInfo.stream)
    return Need(scope_resource(request.streamInfo.scope), READ if internal else UPDATE)


# --- listings -------------------------------------------------------------------------------------


def _keep(field: Any, wanted: Iterable[Any]) -> bool:
    """Leave only what is wanted in a repeated field; whether that emptied it."""
    had, kept = len(field), list(wanted)
    del field[:]
    field.extend(kept)
    return bool(had and not kept)


def _visible_scopes(_: Any, reply: Any, caller: Caller) -> bool:
    return _keep(reply.scopes, [name for name in reply.scopes if caller.may(scope_resource(name), READ)])


def _visible_streams(_: Any, reply: Any, caller: Caller) -> bool:
    streams = [info for info in reply.streams if caller.may(resource_of(info.scope, info.stream), READ)]
    return _keep(reply.streams, streams)


def _visible_tables(_: Any, reply: Any, caller: Caller) -> bool:
    tables = [info for info in reply.kvtables if caller.may(table_resource(info.scope, info.kvtName), READ)]
    return _keep(reply.kvtables, tables)


def _listed(request: Any) -> str:
    return str(request.scope.scope)


RULES: dict[str, Rule] = {
    "getControllerServerList": Rule(_everybody),
    "getControllerToBucketMapping": Rule(_cluster(UPDATE)),
    # scopes
    "createScope": Rule(_cluster(UPDATE)),
    "deleteScope": Rule(_cluster(UPDATE)),
    "deleteScopeRecursive": Rule(_cluster(UPDATE)),
    "checkScopeExists": Rule(_scope(READ)),
    "listScopes": Rule(_cluster(READ), visible=_visible_scopes),
    "listStreamsInScope": Rule(_scope(READ, _listed), visible=_visible_streams),
    "listStreamsInScopeForTag": Rule(_scope(READ, _listed), visible=_visible_streams),
    # streams
    "createStream": Rule(_creation),
    "updateStream": Rule(_stream(UPDATE)),
    "truncateStream": Rule(_stream(UPDATE)),
    "sealStream": Rule(_stream(UPDATE, _itself)),
    "deleteStream": Rule(_stream(UPDATE, _itself)),
    "checkStreamExists": Rule(_stream(READ, _itself)),
    "getStreamConfiguration": Rule(_stream(READ, _itself)),
    "scale": Rule(_stream(UPDATE)),
    "checkScale": Rule(_stream(READ)),
    # segments, and tokens for them
    "getDelegationToken": Rule(_delegation, _itself),
    "getCurrentSegments": Rule(_by_operation(_itself), _itself),
    "getSegments": Rule(_by_operation(), _info),
    "getEpochSegments": Rule(_by_operation(), _info),
    "getSegmentsBetween": Rule(_stream(READ, token=READ), _info),
    "getSegmentsImmediatlyFollowing": Rule(_stream(READ)),
    "getSegmentsImmediatelyFollowing": Rule(_stream(READ)),
    "getURI": Rule(_stream(READ)),
    "isSegmentValid": Rule(_stream(READ)),
    "isStreamCutValid": Rule(_stream(READ)),
    # transactions
    "createTransaction": Rule(_stream(UPDATE, token=UPDATE), _info),
    "commitTransaction": Rule(_stream(UPDATE)),
    "abortTransaction": Rule(_stream(UPDATE)),
    "pingTransaction": Rule(_stream(UPDATE)),
    "checkTransactionState": Rule(_stream(READ)),
    "listCompletedTransactions": Rule(_stream(READ)),
    # watermarks, subscribers, reader groups
    "noteTimestampFromWriter": Rule(_stream(UPDATE, lambda request: request.position.streamInfo)),
    "removeWriter": Rule(_stream(UPDATE, lambda request: request.stream)),
    "listSubscribers": Rule(_stream(UPDATE, _itself)),
    "updateSubscriberStreamCut": Rule(_stream(UPDATE, lambda request: request.streamCut.streamInfo)),
    "createReaderGroup": Rule(_scope(READ)),
    "updateReaderGroup": Rule(_scope(READ)),
    "deleteReaderGroup": Rule(_scope(READ)),
    "getReaderGroupConfig": Rule(_group(READ)),
    # key-value tables
    "createKeyValueTable": Rule(_scope(UPDATE)),
    "deleteKeyValueTable": Rule(_table(UPDATE)),
    "getCurrentSegmentsKeyValueTable": Rule(_table(UPDATE)),
    "getKeyValueTableConfiguration": Rule(_table(READ)),
    "listKeyValueTablesInScope": Rule(_scope(READ, _listed), visible=_visible_tables),
}


class ControllerAccess:
    """Checks requests and puts tokens into replies."""

    def __init__(self, gate: Gate, tokens: TokenKey) -> None:
        self._gate, self._tokens = gate, tokens

    async def answer(self, rpc: str, method: Answer, request: Any, context: Any) -> Any:
        """The reply of `method`, if the caller may have it; raises AccessDeniedError otherwise."""
        rule = RULES.get(rpc)
        if rule is None:
            raise PermissionDeniedError(f"no rule says who may call {rpc}")
        need = rule.need(request)
        if need is None:
            return await method(request)
        header = next((value for key, value in context.invocation_metadata() or () if key == "authorization"), None)
        caller = await self._gate.authorized(header, need.resource, need.permission, context.peer())
        reply = await method(request)
        if rule.visible is not None:
            while rule.visible(request, reply, caller):
                request.continuationToken.CopyFrom(reply.continuationToken)
                reply = await method(request)
        if rule.stream is not None and need.token is not _NO_TOKEN:
            name = rule.stream(request)
            reply.delegationToken = self._tokens.issue(name.scope, name.stream, need.token)
        return reply


def with_token(exchange: Exchange, token: str) -> Exchange:
    """The exchange that shows `token` with every command: the controller's own way to a store that checks."""

    def send(command: Any) -> Awaitable[Command]:
        shown = "token" in type(command).__struct_fields__  # an append shows it at its setup
        return exchange(msgspec.structs.replace(command, token=token) if shown else command)

    return send
