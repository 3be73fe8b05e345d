"""What the caller of a request may do, and the topics, groups and transactions that it may name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nadi.access.authentication import Gate
from nadi.access.budget import Account
from nadi.access.permissions import (
    Caller,
    Permission,
    Permissions,
    reader_group_resource,
    scope_resource,
    stream_resource,
)
from nadi.errors import NadiError, NotFoundError
from nadi.kafka.doors import Doors
from nadi.kafka.messages import UNKNOWN_OPERATIONS, ErrorCode, KafkaError, code_of
from nadi.kafka.topics import Topic, Topics, stream_of
from nadi.kafka.transactions import ProducerInstance

if TYPE_CHECKING:
    from nadi.access.scram import ScramLogin
# Kafka's operations, as bits by their codes, and the permission of nadi that each needs
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (
    1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11, 12)
)
_TOPIC_OPERATIONS = {
    Permission.READ: _READ | _DESCRIBE | _DESCRIBE_CONFIGS,
    Permission.READ_UPDATE: _WRITE | _DELETE | _ALTER | _ALTER_CONFIGS,
}
_GROUP_OPERATIONS = {Permission.READ: _READ | _DESCRIBE, Permission.READ_UPDATE: _DELETE}
_CLUSTER_OPERATIONS = {
    Permission.READ: _DESCRIBE | _DESCRIBE_CONFIGS | _IDEMPOTENT_WRITE,
    Permission.READ_UPDATE: _CREATE,
}

NO_USER = Caller("", Permissions())  # a certificate that isn't a user's


@dataclass(slots=True)
class Peer:
    """A connection's client. sending: its account of unsent bytes. mechanism, login: how it logs in. certificate: what
    names the caller instead (DER). caller: None before that, or if callers needn't authenticate."""

    host: str
    sending: Account
    mechanism: str = ""
    login: ScramLogin | None = None
    certificate: bytes | None = None
    caller: Caller | None = None


class Access:
    """Checks the requests of a door. gate: None if callers needn't authenticate."""

    def __init__(self, topics: Topics, doors: Doors, gate: Gate | None) -> None:
        self._topics, self._doors, self._gate = topics, doors, gate

    # --- permissions --------------------------------------------------------------------------

    def _require(self, peer: Peer, resource: str, permission: Permission, code: ErrorCode) -> None:
        if self._gate is not None:
            assert peer.caller is not None, "the connection is authenticated"
            try:
                self._gate.require(peer.caller, resource, permission)
            except NadiError as error:
                raise KafkaError(code, str(error)) from error

    def require_topic(self, peer: Peer, name: str, permission: Permission = Permission.READ) -> None:
        resource = stream_resource(self._topics.scope, stream_of(name))
        self._require(peer, resource, permission, ErrorCode.topic_authorization_failed)

    def require_group(self, peer: Peer, name: str, permission: Permission = Permission.READ) -> None:
        resource = reader_group_resource(self._topics.scope, name)
        self._require(peer, resource, permission, ErrorCode.group_authorization_failed)

    def require_scope(self, peer: Peer, permission: Permission) -> None:
        resource = scope_resource(self._topics.scope)
        self._require(peer, resource, permission, ErrorCode.cluster_authorization_failed)

    def _may(self, peer: Peer, resource: str, permission: Permission) -> bool:
        return self._gate is None or (peer.caller is not None and peer.caller.may(resource, permission))

    def may_see_topic(self, peer: Peer, name: str) -> bool:
        return self._gate is None or bool(self.topic_operations(peer, name) & _DESCRIBE)

    def may_see_group(self, peer: Peer, group: str) -> bool:
        return self._may(peer, reader_group_resource(self._topics.scope, group), Permission.READ)

    def may_see_transaction(self, peer: Peer, user: str) -> bool:
        """Return whether the caller may see the transactions of a user: its own, and all as an administrator."""
        is_own = peer.caller is not None and peer.caller.name == user
        return is_own or self._may(peer, scope_resource(self._topics.scope), Permission.READ_UPDATE)

    def topic_operations(self, peer: Peer, name: str) -> int:
        try:
            resource = stream_resource(self._topics.scope, stream_of(name))
        except KafkaError:  # an invalid name
            return UNKNOWN_OPERATIONS
        return self._operations(peer, resource, _TOPIC_OPERATIONS)

    def group_operations(self, peer: Peer, name: str, *, is_asked: bool) -> int:
        resource = reader_group_resource(self._topics.scope, name)
        return self._operations(peer, resource, _GROUP_OPERATIONS) if is_asked else UNKNOWN_OPERATIONS

    def cluster_operations(self, peer: Peer, *, is_asked: bool) -> int:
        resource = scope_resource(self._topics.scope)
        return self._operations(peer, resource, _CLUSTER_OPERATIONS) if is_asked else UNKNOWN_OPERATIONS

    def _operations(self, peer: Peer, resource: str, operations: Mapping[Permission, int]) -> int:
        """Return the caller's operations as bits."""
        return sum(bits for permission, bits in operations.items() if self._may(peer, resource, permission))

    # --- topics -------------------------------------------------------------------------------

    async def readable(self, peer: Peer, name: str) -> Topic:
        self.require_topic(peer, name)
        return await self._topics.get(name)

    async def visible(self, peer: Peer) -> list[str]:
        names, scope = await self._topics.names(), self._topics.scope
        return [name for name in names if self._may(peer, stream_resource(scope, stream_of(name)), Permission.READ)]

    async def found_or_created(self, peer: Peer, name: str, *, creates: bool) -> Topic:
        try:
            return await self.readable(peer, name)
        except NotFoundError:
            if not creates:
                raise
        self.require_scope(peer, Permission.READ_UPDATE)
        try:
            return await self._topics.create(name, -1, {})
        except NadiError as error:
            if code_of(error) != ErrorCode.topic_already_exists:
                raise
            return await self._topics.get(name)

    # --- coordinators -------------------------------------------------------------------------

    def check_group(self, peer: Peer, name: str) -> None:
        self.require_group(peer, name)
        if not self._doors.is_own("group", name):
            raise KafkaError(ErrorCode.not_coordinator)

    def producer(self, peer: Peer, name: str, producer_id: int, epoch: int) -> ProducerInstance:
        return ProducerInstance(name, "" if peer.caller is None else peer.caller.name, producer_id, epoch)

    def check_transaction(self, name: str) -> None:
        if not self._doors.is_own("transaction", name):
            raise KafkaError(ErrorCode.not_coordinator)
