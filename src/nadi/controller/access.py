"""Access rules of the RPCs: one table, and the single place where every request is checked against it.

Resources are derived from the request before any lookup, so a caller without access to a stream gets the same answer
whether or not it exists. Listings are filtered to what the caller may read; since an empty page ends a listing, pages
that filtering empties are skipped. An RPC without a rule is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import msgspec

from nadi.access.audit import AuditedAct
from nadi.access.authentication import Gate
from nadi.access.names import Act, NameKind, Need, kind_of, need
from nadi.access.permissions import CLUSTER, Caller, Permission, reader_group_resource, scope_resource, table_resource
from nadi.access.tokens import TokenKey
from nadi.controller.external_scaler import authorization, metadata_of, trigger
from nadi.errors import PermissionDeniedError
from nadi.model.reports import IDENTITY, RETENTION, STREAM_LAG
from nadi.naming import TABLE_SUFFIX
from nadi.wire.commands import Command
from nadi.wire.rpc import controller_pb2 as pb

READ, UPDATE = Permission.READ, Permission.READ_UPDATE
_ACCESS = pb.StreamInfo.AccessOperation

Answer = Callable[[Any], Awaitable[Any]]
Exchange = Callable[[Command], Awaitable[Command]]


@dataclass(frozen=True, slots=True)
class AccessRule:
    """need: the permission the request needs; None if it is open to all. also: further permissions. stream: selects the
    stream whose token the reply carries. tables: the token also covers the table of that name if the caller may use it.
    lists: the reply field of a listing that is filtered. credentials: extracts credentials embedded in the request; if
    it returns None, those of the call apply."""

    need: Callable[[Any], Need | None]
    also: Callable[[Any], Iterable[Need]] | None = None
    stream: Callable[[Any], Any] | None = None
    tables: bool = False
    lists: str = ""
    credentials: Callable[[Any], str | None] | None = None


def _itself(request: Any) -> Any:
    return request


_info, _listed = attrgetter("streamInfo"), attrgetter("scope.scope")


def _cluster(permission: Permission) -> Callable[[Any], Need]:
    return lambda _: Need(CLUSTER, permission)


def _scope(
    permission: Permission, scope: Callable[[Any], str] = lambda request: str(request.scope)
) -> Callable[[Any], Need]:
    return lambda request: Need(scope_resource(scope(request)), permission)


def _stream(act: Act, info: Callable[[Any], Any] = _info) -> Callable[[Any], Need]:
    return lambda request: need(info(request).scope, info(request).stream, act)


def _table(permission: Permission) -> Callable[[Any], Need]:
    return lambda request: Need(table_resource(request.scope, request.kvtName), permission)


def _by_operation(info: Callable[[Any], Any] = _info) -> Callable[[Any], Need]:
    """Return the need: NONE only reads; any other operation, or none at all, needs a token to write."""
    looks, writes = _stream(Act.INSPECT, info), _stream(Act.WRITE, info)
    return lambda request: (looks if info(request).accessOperation == _ACCESS.NONE else writes)(request)


def _delegation(request: Any) -> Need:
    writes = request.accessOperation in (_ACCESS.UNSPECIFIED, _ACCESS.WRITE, _ACCESS.READ_WRITE)
    return need(request.scope, request.stream, Act.WRITE if writes else Act.READ)


def _begin_transaction(request: Any) -> Need:
    name = request.streamInfo
    return replace(need(name.scope, name.stream, Act.CHANGE), token=UPDATE)


def _named(request: Any) -> Iterable[Need]:
    """Yield what a group's streams need: its lag reveals their lengths, and a subscription reveals their existence."""
    for cut in request.startingStreamCuts:
        yield need(cut.streamInfo.scope, cut.streamInfo.stream, Act.INSPECT)


def shows(caller: Caller, scope: str, stream: str) -> bool:
    looking = need(scope, stream, Act.INSPECT)
    return looking.permission is not None and caller.may(looking.resource, looking.permission)


def _report(request: Any) -> Need | None:
    """Return the need of a report. Retention and lag reports name subscribers, so they need what listing them needs;
    the server's identity reveals nothing about its contents."""
    if request.kind == IDENTITY:
        return None
    names_groups = request.kind in (RETENTION, STREAM_LAG)
    return need(request.scope, request.stream, Act.CHANGE if names_groups else Act.INSPECT)


def _scaled(request: Any) -> Need:
    """Return the need of KEDA's calls: they reveal how much a stream contains, not its data."""
    return need(*trigger(metadata_of(request)).stream, Act.INSPECT)


def _scaled_by_group(request: Any) -> Iterable[Need]:
    group = trigger(metadata_of(request)).group
    if group is not None:
        yield Need(reader_group_resource(*group), READ)


_IS_SHOWN: dict[str, Callable[[Caller, Any], bool]] = {  # by the field of a listing
    "scopes": lambda caller, name: caller.may(scope_resource(name), READ),
    "streams": lambda caller, info: shows(caller, info.scope, info.stream),
    "kvtables": lambda caller, info: caller.may(table_resource(info.scope, info.kvtName), READ),
}


def _is_emptied(reply: Any, field: str, caller: Caller) -> bool:
    """Keep only what the caller may read in the field; return whether that emptied it."""
    listed = getattr(reply, field)
    count, visible = len(listed), [item for item in listed if _IS_SHOWN[field](caller, item)]
    del listed[:]
    listed.extend(visible)
    return bool(count and not visible)


_SCALER = AccessRule(_scaled, also=_scaled_by_group, credentials=lambda request: authorization(metadata_of(request)))
RULES: dict[str, AccessRule] = {
    "getControllerServerList": AccessRule(lambda _: None),
    "getControllerToBucketMapping": AccessRule(_cluster(UPDATE)),
    # scopes
    "createScope": AccessRule(_cluster(UPDATE)),
    "deleteScope": AccessRule(_cluster(UPDATE)),
    "deleteScopeRecursive": AccessRule(_cluster(UPDATE)),
    "checkScopeExists": AccessRule(_scope(READ)),
    "listScopes": AccessRule(_cluster(READ), lists="scopes"),
    "listStreamsInScope": AccessRule(_scope(READ, _listed), lists="streams"),
    "listStreamsInScopeForTag": AccessRule(_scope(READ, _listed), lists="streams"),
    # streams
    "createStream": AccessRule(_stream(Act.CREATE)),
    "updateStream": AccessRule(_stream(Act.CHANGE)),
    "truncateStream": AccessRule(_stream(Act.CHANGE)),
    "sealStream": AccessRule(_stream(Act.END, _itself)),
    "deleteStream": AccessRule(_stream(Act.END, _itself)),
    "checkStreamExists": AccessRule(_stream(Act.INSPECT, _itself)),
    "getStreamConfiguration": AccessRule(_stream(Act.INSPECT, _itself)),
    "scale": AccessRule(_stream(Act.CHANGE)),
    "checkScale": AccessRule(_stream(Act.INSPECT)),
    # segments, and tokens for them
    "getDelegationToken": AccessRule(_delegation, stream=_itself, tables=True),
    "getCurrentSegments": AccessRule(_by_operation(_itself), stream=_itself),
    "getSegments": AccessRule(_by_operation(), stream=_info),
    "getEpochSegments": AccessRule(_by_operation(), stream=_info),
    "getSegmentsBetween": AccessRule(_stream(Act.READ), stream=_info),
    "getSegmentsImmediatlyFollowing": AccessRule(_stream(Act.INSPECT)),
    "getSegmentsImmediatelyFollowing": AccessRule(_stream(Act.INSPECT)),
    "getURI": AccessRule(_stream(Act.INSPECT)),
    "isSegmentValid": AccessRule(_stream(Act.INSPECT)),
    "isStreamCutValid": AccessRule(_stream(Act.INSPECT)),
    # transactions
    "createTransaction": AccessRule(_begin_transaction, stream=_info),
    "commitTransaction": AccessRule(_stream(Act.CHANGE)),
    "abortTransaction": AccessRule(_stream(Act.CHANGE)),
    "pingTransaction": AccessRule(_stream(Act.CHANGE)),
    "checkTransactionState": AccessRule(_stream(Act.INSPECT)),
    "listCompletedTransactions": AccessRule(_stream(Act.INSPECT)),
    # watermarks, subscribers, reader groups
    "noteTimestampFromWriter": AccessRule(_stream(Act.CHANGE, lambda request: request.position.streamInfo)),
    "removeWriter": AccessRule(_stream(Act.CHANGE, lambda request: request.stream)),
    "listSubscribers": AccessRule(_stream(Act.CHANGE, _itself)),
    "updateSubscriberStreamCut": AccessRule(_stream(Act.CHANGE, lambda request: request.streamCut.streamInfo)),
    "createReaderGroup": AccessRule(_scope(READ), also=_named),
    "updateReaderGroup": AccessRule(_scope(READ), also=_named),
    "deleteReaderGroup": AccessRule(_scope(READ)),
    "getReaderGroupConfig": AccessRule(lambda group: Need(reader_group_resource(group.scope, group.readerGroup), READ)),
    # key-value tables
    "createKeyValueTable": AccessRule(_scope(UPDATE)),
    "deleteKeyValueTable": AccessRule(_table(UPDATE)),
    "getCurrentSegmentsKeyValueTable": AccessRule(_table(UPDATE)),
    "getKeyValueTableConfiguration": AccessRule(_table(READ)),
    "listKeyValueTablesInScope": AccessRule(_scope(READ, _listed), lists="kvtables"),
    # nadi's own, and KEDA's
    "listQuotas": AccessRule(_cluster(READ)),
    "changeQuota": AccessRule(_cluster(UPDATE)),
    "shareQuotas": AccessRule(_cluster(UPDATE)),
    "report": AccessRule(_report),
    "commitTogether": AccessRule(_stream(Act.CHANGE, _itself)),
    "findCommit": AccessRule(_stream(Act.INSPECT, _itself)),
    "beginTransactions": AccessRule(_stream(Act.CHANGE, _itself)),
    "commitTransactions": AccessRule(_stream(Act.CHANGE, _itself)),
    "awaitTransactions": AccessRule(_stream(Act.INSPECT, _itself)),
    "IsActive": _SCALER,
    "StreamIsActive": _SCALER,
    "GetMetricSpec": _SCALER,
    "GetMetrics": _SCALER,
}


AUDITED = {  # administrative RPCs, with the actions in their audit records
    "createScope": "scope.create",
    "deleteScope": "scope.delete",
    "deleteScopeRecursive": "scope.delete",
    "createStream": "stream.create",
    "updateStream": "stream.update",
    "truncateStream": "stream.truncate",
    "sealStream": "stream.seal",
    "deleteStream": "stream.delete",
    "scale": "stream.scale",
    "createReaderGroup": "group.create",
    "updateReaderGroup": "group.update",
    "deleteReaderGroup": "group.delete",
    "createKeyValueTable": "table.create",
    "deleteKeyValueTable": "table.delete",
    "changeQuota": "quota.change",
}
_NAMES = ("scope", "stream", "readerGroup", "readerGroupName", "kvtName", "owner")  # fields of requests


def _subject(request: Any) -> str:
    named = getattr(request, "streamInfo", request)
    return "/".join(text for name in _NAMES if isinstance(text := getattr(named, name, None), str) and text)


def _detail(reply: Any) -> str:
    """Return the status of a reply, unless it means success."""
    field = reply.DESCRIPTOR.fields_by_name.get("status")
    status = field.enum_type.values_by_number[reply.status].name if field is not None else ""
    return "" if status in ("SUCCESS", "STARTED") else status


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


class ControllerAccess:
    def __init__(self, gate: Gate, tokens: TokenKey) -> None:
        self.gate, self._tokens = gate, tokens

    async def permit(self, rpc: str, request: Any, context: Any) -> tuple[AccessRule, Need | None, Caller | None]:
        """Return the rule, the need, and the caller (None if the RPC is open to all); raises AccessDeniedError."""
        rule = RULES.get(rpc)
        if rule is None:
            raise PermissionDeniedError(f"no access rule covers {rpc}: the call is refused")
        needed = rule.need(request)
        if needed is None:
            return rule, None, None
        header = rule.credentials(request) if rule.credentials is not None else None
        if header is None:
            header = context.authorization()
        caller = await self.gate.authorized(header, needed.resource, needed.permission, context.peer())
        for other in rule.also(request) if rule.also is not None else ():
            self.gate.require(caller, other.resource, other.permission)
        return rule, needed, caller

    async def answer(self, rpc: str, method: Answer, request: Any, context: Any) -> Any:
        """Return the reply of `method` if the caller may have it; raises AccessDeniedError otherwise."""
        rule, needed, caller = await self.permit(rpc, request, context)
        if needed is None or caller is None:
            return await method(request)
        if (audit := self.gate.audit) is not None and (action := AUDITED.get(rpc)) is not None:
            user, address = "" if caller.is_server else caller.name, context.peer().rpartition(":")[0]
            text = " ".join(str(request).split())
            act = AuditedAct(
                action=action, subject=_subject(request), user=user, address=address, door="grpc", request=text
            )
            return await audit.run(act, _awaited(method(request)), _detail)
        reply = await method(request)
        while rule.lists and _is_emptied(reply, rule.lists, caller):
            request.continuationToken.CopyFrom(reply.continuationToken)
            reply = await method(request)
        if rule.stream is not None and needed.token is not Permission.NONE:
            name = rule.stream(request)
            more = []
            is_plain = kind_of(name.scope, name.stream) is NameKind.STREAM
            if rule.tables and is_plain and caller.may(table_resource(name.scope, name.stream), needed.token):
                more.append(name.stream + TABLE_SUFFIX)  # Java asks for a table's token by its plain name
            user = "" if caller.is_server else caller.name
            reply.delegationToken = self._tokens.issue(name.scope, name.stream, needed.token, *more, user=user)
        return reply


def with_token(exchange: Exchange, token: str) -> Exchange:
    """Return an exchange that adds `token` to every command, for the controller's calls to an authenticating store."""

    def send(command: Any) -> Awaitable[Command]:
        has_token = "token" in type(command).__struct_fields__  # an append's token is sent at its setup
        return exchange(msgspec.structs.replace(command, token=token) if has_token else command)

    return send
