"""What a door does with each request: the method for each API, the login, and requests about the doors.

Methods are named as in Kafka's protocol: https://kafka.apache.org/protocol
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable

from nadi.access.audit import AuditedAct
from nadi.access.authentication import Gate
from nadi.access.users import MECHANISMS
from nadi.client.aio import StreamManager
from nadi.errors import NotAuthenticatedError
from nadi.kafka.access import Access, Peer
from nadi.kafka.coordinator_requests import CoordinatorRequests
from nadi.kafka.doors import Doors
from nadi.kafka.groups import Groups
from nadi.kafka.messages import (
    API_VERSIONS,
    FETCH,
    NONE,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    VERSIONS,
    ErrorCode,
    Fields,
    Request,
)
from nadi.kafka.producing import Producing
from nadi.kafka.record_requests import RecordRequests
from nadi.kafka.topic_requests import TopicRequests
from nadi.kafka.topics import Topics
from nadi.kafka.transactions import Transactions

BEFORE_LOGIN = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
_PLAIN = "PLAIN"
_MECHANISMS = (_PLAIN, *MECHANISMS)
_GROUP, _TRANSACTION = 0, 1  # types of coordinators
_AUDITED = {  # requests, with the actions in audit records
    19: "stream.create",
    20: "stream.delete",
    21: "stream.truncate",
    33: "stream.update",
    37: "stream.scale",
    42: "group.delete",
    44: "stream.update",
}


class Handlers:
    """The requests of all connections of a door.

    gate: None if callers needn't authenticate. auto_creates: whether asking for a missing topic creates it.
    """

    def __init__(
        self,
        manager: StreamManager,
        topics: Topics,
        doors: Doors,
        groups: Groups,
        producing: Producing,
        transactions: Transactions,
        gate: Gate | None,
        *,
        auto_creates: bool,
    ) -> None:
        access = Access(topics, doors, gate)
        self._topics, self._doors, self._gate, self._access = topics, doors, gate, access
        self._records = records = RecordRequests(access, topics, producing, transactions)
        about_topics = TopicRequests(access, manager, topics, doors, auto_creates=auto_creates)
        coordinators = CoordinatorRequests(access, topics, doors, groups, transactions, producing)
        self._methods: dict[int, Callable[[Peer, Request], Awaitable[Fields]]] = {
            FETCH: records.fetch,
            2: records.list_offsets,
            3: about_topics.metadata,
            8: coordinators.offset_commit,
            9: coordinators.offset_fetch,
            10: self._find_coordinator,
            11: coordinators.join_group,
            12: coordinators.heartbeat,
            13: coordinators.leave_group,
            14: coordinators.sync_group,
            15: coordinators.describe_groups,
            16: coordinators.list_groups,
            SASL_HANDSHAKE: self._sasl_handshake,
            API_VERSIONS: self._api_versions,
            19: about_topics.create_topics,
            20: about_topics.delete_topics,
            21: about_topics.delete_records,
            22: records.init_producer_id,
            23: records.offset_for_leader_epoch,
            24: coordinators.add_partitions_to_txn,
            25: coordinators.add_offsets_to_txn,
            26: coordinators.end_txn,
            28: coordinators.txn_offset_commit,
            32: about_topics.describe_configs,
            33: about_topics.alter_configs,
            SASL_AUTHENTICATE: self._sasl_authenticate,
            37: about_topics.create_partitions,
            42: coordinators.delete_groups,
            44: about_topics.incremental_alter_configs,
            47: coordinators.offset_delete,
            60: self._describe_cluster,
            61: records.describe_producers,
            65: coordinators.describe_transactions,
            66: coordinators.list_transactions,
        }

    async def answer(self, peer: Peer, request: Request) -> Fields:
        """Return the fields of the response; an unexpected NadiError becomes the response's error code."""
        action = _AUDITED.get(request.key)
        if action is not None and self._gate is not None and self._gate.audit is not None:
            user, text = "" if peer.caller is None else peer.caller.name, str(request.body)
            act = AuditedAct(
                action=action, subject=_subject(request), user=user, address=peer.host, door="kafka", request=text
            )
            return await self._gate.audit.run(act, self._handled(peer, request), lambda it: ", ".join(_errors(it)))
        return await self._handled(peer, request)

    async def _handled(self, peer: Peer, request: Request) -> Fields:
        return await self._methods[request.key](peer, request)

    async def produce(self, peer: Peer, request: Request) -> Awaitable[Fields]:
        """Queue a request's batches, in the order of requests; return an awaitable of the response's fields."""
        return await self._records.produce(peer, request)

    # --- connections --------------------------------------------------------------------------

    async def _api_versions(self, peer: Peer, request: Request) -> Fields:
        return api_versions()

    async def _sasl_handshake(self, peer: Peer, request: Request) -> Fields:
        if self._gate is None:
            return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
        if request.body.mechanism not in _MECHANISMS:
            return {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": _MECHANISMS}
        peer.mechanism, peer.login = request.body.mechanism, None
        peer.caller = peer.certificate = None  # from now on the login decides
        return {"mechanisms": _MECHANISMS}

    async def _sasl_authenticate(self, peer: Peer, request: Request) -> Fields:
        if self._gate is None or not peer.mechanism:
            return {"error_code": ErrorCode.illegal_sasl_state, "error_message": "a handshake must come first"}
        message = bytes(request.body.auth_bytes)
        try:
            if peer.mechanism != _PLAIN:
                return {"auth_bytes": await self._scram(self._gate, peer, message)}
            _, _, rest = message.partition(b"\0")
            user, _, password = rest.partition(b"\0")
            authorization = "Basic " + base64.b64encode(user + b":" + password).decode()
            peer.caller = await self._gate.caller(authorization, f"{peer.host}:0")
        except NotAuthenticatedError as error:
            return {"error_code": ErrorCode.sasl_authentication_failed, "error_message": str(error), "auth_bytes": b""}
        return {"auth_bytes": b""}

    async def _scram(self, gate: Gate, peer: Peer, message: bytes) -> bytes:
        login = peer.login or gate.begin_scram(peer.mechanism, self._topics.unknown_users_key)
        peer.login = None
        reply, peer.caller = await gate.continue_scram(login, message, peer.host)
        if peer.caller is None:
            peer.login = login
        return reply

    # --- doors --------------------------------------------------------------------------------

    async def _describe_cluster(self, peer: Peer, request: Request) -> Fields:
        brokers = [{"broker_id": door.node_id, "host": door.host, "port": door.port} for door in self._doors.live]
        return {
            "cluster_id": self._topics.scope,
            "controller_id": self._doors.own.node_id,
            "brokers": brokers,
            "endpoint_type": 1,
            "cluster_authorized_operations": self._access.cluster_operations(
                peer, is_asked=request.body.include_cluster_authorized_operations
            ),
        }

    async def _find_coordinator(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        kind = getattr(body, "key_type", _GROUP)
        keys = getattr(body, "coordinator_keys", None)
        found = [self._coordinator(kind, key) for key in ([body.key] if keys is None else keys)]
        return {**found[0], "coordinators": found} if keys is None else {"coordinators": found}

    def _coordinator(self, kind: int, key: str) -> Fields:
        if kind not in (_GROUP, _TRANSACTION):
            missing = {"node_id": NONE, "host": "", "port": NONE}
            return {"key": key, **missing, "error_code": ErrorCode.invalid_request, "error_message": "an unknown type"}
        door = self._doors.leader("group" if kind == _GROUP else "transaction", key)
        return {"key": key, "node_id": door.node_id, "host": door.host, "port": door.port}


def _subject(request: Request) -> str:
    """Return the names of the topics or groups of a request."""
    body = request.body
    named = [*getattr(body, "topics", ()), *getattr(body, "resources", ()), *getattr(body, "groups_names", ())]
    names = [getattr(item, "name", None) or getattr(item, "resource_name", item) for item in named]
    return ", ".join([*map(str, names), *map(str, getattr(body, "topic_names", ()))])


def _errors(fields: Fields) -> list[str]:
    """Return the names of the errors in a response."""
    code = fields.get("error_code") or ErrorCode.none
    found = [] if code == ErrorCode.none else [ErrorCode(code).name]
    for value in fields.values():
        if isinstance(value, list | tuple):
            found += [error for item in value if isinstance(item, dict) for error in _errors(item)]
    return found


def api_versions() -> Fields:
    """Return the implemented versions of each API."""
    versions = {**VERSIONS, PRODUCE: (0, VERSIONS[PRODUCE][1])}  # librdkafka derives its codecs from version 0
    return {
        "api_keys": [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in versions.items()]
    }
