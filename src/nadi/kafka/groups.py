"""Consumer groups: the state machine of Kafka's classic protocol.

The door that coordinates a group changes its record by compare-and-set, and stores committed offsets together with it.
So a former coordinator can't change anything, and the next one continues with the same generation, members and
assignments.

Protocol: https://cwiki.apache.org/confluence/display/KAFKA/Kafka+Client-side+Assignment+Proposal
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.serial import entity_reader

from nadi.client.tables.table import ABSENT
from nadi.errors import ConditionFailedError, NadiError
from nadi.kafka.group_records import GroupRecords, Offsets, StoredGroup, StoredMember
from nadi.kafka.lengths import check_lengths
from nadi.kafka.messages import ErrorCode, KafkaError
from nadi.limits import (
    KAFKA_FIRST_JOIN_S,
    KAFKA_GROUP_BYTES,
    KAFKA_GROUP_MEMBERS,
    KAFKA_GROUPS,
    KAFKA_SESSION_S,
)

EMPTY, STABLE, DEAD = "Empty", "Stable", "Dead"
PREPARING, COMPLETING = "PreparingRebalance", "CompletingRebalance"
_CONSUMERS = "consumer"  # the protocol type of consumers' groups; others' metadata is opaque
_VERSION_BYTES = 2  # before a subscription
_read_subscription = entity_reader(ConsumerProtocolSubscription)


class Join(NamedTuple):
    """A request to join. instance_id: of a static member. takes_id: whether the client can come again with an id."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    takes_id: bool


@dataclass(slots=True, eq=False)
class _Member:
    stored: StoredMember
    size: int  # of `stored`
    joining: asyncio.Future[None] | None = None
    syncing: asyncio.Future[bytes] | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def member_id(self) -> str:
        return self.stored.member_id

    def metadata(self, protocol: str) -> bytes:
        return dict(self.stored.protocols).get(protocol, b"")


@dataclass(slots=True, eq=False)
class _Group:
    name: str
    version: int
    state: str = EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, _Member] = field(default_factory=dict)
    formed: tuple[StoredMember, ...] = ()  # the members as this generation was formed
    invited: dict[str, float] = field(default_factory=dict)  # ids given to clients that haven't come back with them
    timer: asyncio.TimerHandle | None = None  # of the rebalance
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def record(self) -> StoredGroup:
        members = tuple(member.stored for member in self.members.values())
        return StoredGroup(self.generation, self.protocol_type, self.protocol, self.leader, members)

    def static_member(self, instance_id: str) -> _Member | None:
        return next((member for member in self.members.values() if member.stored.instance_id == instance_id), None)

    def common_protocols(self, besides: str = "") -> set[str]:
        """Return the protocols of all members but one."""
        others = [member for member in self.members.values() if member.member_id != besides]
        return (
            set.intersection(*({name for name, _ in member.stored.protocols} for member in others)) if others else set()
        )


class Groups:
    """The groups that this door coordinates."""

    def __init__(self, records: GroupRecords) -> None:
        self.records = records
        self._groups: dict[str, _Group] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- joining ------------------------------------------------------------------------------

    async def join(self, name: str, join: Join) -> dict[str, Any]:
        """Let a member join, and return the response's fields once the others have joined, too; KafkaError."""
        least, most = KAFKA_SESSION_S
        if not least * 1000 <= join.session_ms <= most * 1000:
            raise KafkaError(ErrorCode.invalid_session_timeout)
        group = await self._group(name)
        member = self._admitted(group, join)
        if member.stored.instance_id and join.member_id == "" and group.state == STABLE and member.stored.assignment:
            await self._store(group)
            return self._joined(group, member, skips=True)
        if self._needs_rebalance(group, member, join):
            self._prepare(group)
        if group.state != PREPARING:
            return self._joined(group, member)
        if member.joining is None or member.joining.done():
            member.joining = asyncio.get_running_loop().create_future()
        joining = member.joining
        self._stop_timer(member)
        self._complete_if_all(group)
        await asyncio.shield(joining)  # a member whose connection is lost has joined nevertheless, as with Kafka
        return self._joined(group, member)

    def _admitted(self, group: _Group, join: Join) -> _Member:
        """Add or update the member that asks to join, and return it; KafkaError."""
        known = group.members.get(join.member_id)
        static = group.static_member(join.instance_id) if join.instance_id else None
        if join.member_id and known is None and join.member_id not in group.invited:
            raise KafkaError(ErrorCode.fenced_instance_id if static is not None else ErrorCode.unknown_member_id)
        if join.member_id and static is not None and static is not known:
            raise KafkaError(ErrorCode.fenced_instance_id)
        replaced = known or static
        if not join.protocols or (group.members.keys() - {replaced.member_id if replaced else ""}):
            names = {protocol for protocol, _ in join.protocols}
            common = group.common_protocols(replaced.member_id if replaced else "")
            if (join.protocol_type != group.protocol_type and group.members) or not names & (common or names):
                raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if not join.protocols:
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if replaced is None and len(group.members) >= KAFKA_GROUP_MEMBERS:
            raise KafkaError(ErrorCode.group_max_size_reached)
        member_id = join.member_id or f"{(join.instance_id or join.client_id)[:255]}-{uuid.uuid4()}"
        stored = StoredMember(
            member_id,
            join.instance_id,
            join.client_id,
            join.host,
            join.session_ms,
            join.rebalance_ms,
            join.protocols,
            replaced.stored.assignment if replaced is not None else b"",
        )
        size = stored.size_bytes()
        if size + sum(member.size for member in group.members.values() if member is not replaced) > KAFKA_GROUP_BYTES:
            raise KafkaError(ErrorCode.group_max_size_reached)
        if not join.member_id and not join.instance_id and join.takes_id:
            self._invite(group, member_id)
            raise MemberIdRequiredError(member_id)
        group.invited.pop(member_id, None)
        group.protocol_type = join.protocol_type
        if replaced is not None and replaced.member_id != member_id:
            self._fence(group, replaced)
            if group.leader == replaced.member_id:
                group.leader = member_id
        if known is not None:
            known.stored, known.size = stored, size
            self._touch(group, known)
            return known
        member = group.members[member_id] = _Member(stored, size)
        self._touch(group, member)
        return member

    def _invite(self, group: _Group, member_id: str) -> None:
        now = time.monotonic()
        most = KAFKA_SESSION_S[1]
        group.invited = {name: at for name, at in group.invited.items() if now - at < most}
        if len(group.invited) >= KAFKA_GROUP_MEMBERS:
            group.invited.pop(next(iter(group.invited)))
        group.invited[member_id] = now

    def _fence(self, group: _Group, member: _Member) -> None:
        """Remove a static member whose place a new instance takes."""
        self._forget(group, member, ErrorCode.fenced_instance_id)

    def _forget(self, group: _Group, member: _Member, code: ErrorCode) -> None:
        group.members.pop(member.member_id, None)
        self._stop_timer(member)
        for waiting in (member.joining, member.syncing):
            if waiting is not None and not waiting.done():
                waiting.set_exception(KafkaError(code))
                waiting.exception()

    def _needs_rebalance(self, group: _Group, member: _Member, join: Join) -> bool:
        if group.state == PREPARING:
            return False
        if group.state == EMPTY or not join.member_id:
            return True
        was = next((each for each in group.formed if each.member_id == member.member_id), None)
        if was is None or was.protocols != member.stored.protocols:
            return True
        return group.state == STABLE and group.leader == member.member_id

    def _joined(self, group: _Group, member: _Member, *, skips: bool = False) -> dict[str, Any]:
        is_leader = group.leader == member.member_id
        return {
            "generation_id": group.generation,
            "protocol_type": group.protocol_type,
            "protocol_name": group.protocol,
            "leader": group.leader,
            "skip_assignment": skips and is_leader,
            "member_id": member.member_id,
            "members": [
                {
                    "member_id": each.member_id,
                    "group_instance_id": each.stored.instance_id,
                    "metadata": each.metadata(group.protocol),
                }
                for each in group.members.values()
            ]
            if is_leader
            else [],
        }

    # --- rebalancing --------------------------------------------------------------------------

    def _prepare(self, group: _Group) -> None:
        """Ask all members to join again."""
        is_first = group.state == EMPTY
        group.state = PREPARING
        for member in group.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_exception(KafkaError(ErrorCode.rebalance_in_progress))
                member.syncing.exception()
        longest = max((member.stored.rebalance_ms for member in group.members.values()), default=0) / 1000
        self._time(group, min(KAFKA_FIRST_JOIN_S, longest) if is_first else longest)

    def _time(self, group: _Group, seconds: float) -> None:
        if group.timer is not None:
            group.timer.cancel()
        group.timer = asyncio.get_running_loop().call_later(seconds, self._overdue, group)

    def _overdue(self, group: _Group) -> None:
        group.timer = None
        if group.state == PREPARING:
            self._complete(group)
        elif group.state == COMPLETING:
            for member in [member for member in group.members.values() if member.syncing is None]:
                self._forget(group, member, ErrorCode.unknown_member_id)
            self._prepare(group)
            self._complete_if_all(group)

    def _complete_if_all(self, group: _Group) -> None:
        is_first = group.generation == 0 or not group.formed
        if (
            group.state == PREPARING
            and not is_first
            and all(_waits(member.joining) for member in group.members.values())
        ):
            self._complete(group)

    def _complete(self, group: _Group) -> None:
        """Form the next generation of the members that have joined."""
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        for member in [member for member in group.members.values() if not _waits(member.joining)]:
            self._forget(group, member, ErrorCode.unknown_member_id)
        group.generation += 1
        if not group.members:
            group.state, group.leader, group.protocol = EMPTY, "", ""
            group.formed = ()
            self._store_soon(group)
            return
        group.state = COMPLETING
        group.protocol = _elected(group)
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        for member in group.members.values():
            member.stored = msgspec.structs.replace(member.stored, assignment=b"")
            member.syncing = None
        group.formed = tuple(member.stored for member in group.members.values())
        for member in group.members.values():
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(None)
            member.joining = None
            self._touch(group, member)
        self._time(group, max(member.stored.rebalance_ms for member in group.members.values()) / 1000)

    async def sync(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
    ) -> dict[str, Any]:
        """Return a member's assignment, once the leader has sent all of them; KafkaError."""
        group, member = await self._known(name, member_id, instance_id, generation)
        if protocol[0] not in (None, group.protocol_type) or protocol[1] not in (None, group.protocol):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if group.state == PREPARING:
            raise KafkaError(ErrorCode.rebalance_in_progress)
        self._touch(group, member)
        if group.state == COMPLETING:
            if member.syncing is None or member.syncing.done():
                member.syncing = asyncio.get_running_loop().create_future()
            syncing = member.syncing
            if group.leader == member_id:
                await self._assign(group, assignments)
            assignment = await asyncio.shield(syncing)
        else:
            assignment = member.stored.assignment
        return {"protocol_type": group.protocol_type, "protocol_name": group.protocol, "assignment": assignment}

    async def _assign(self, group: _Group, assignments: Mapping[str, bytes]) -> None:
        for member in group.members.values():
            member.stored = msgspec.structs.replace(
                member.stored, assignment=bytes(assignments.get(member.member_id, b""))
            )
        generation = group.generation
        await self._store(group)
        if group.state != COMPLETING or group.generation != generation:
            return  # another rebalance has begun
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        group.state = STABLE
        for member in group.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result(member.stored.assignment)

    # --- staying and leaving ------------------------------------------------------------------

    async def heartbeat(self, name: str, member_id: str, instance_id: str | None, generation: int) -> None:
        group, member = await self._known(name, member_id, instance_id, generation)
        self._touch(group, member)
        if group.state == PREPARING:
            raise KafkaError(ErrorCode.rebalance_in_progress)

    async def leave(self, name: str, member_id: str, instance_id: str | None) -> None:
        group = await self._group(name, creates=False)
        member = group.static_member(instance_id) if instance_id else group.members.get(member_id)
        if member is None:
            if group.invited.pop(member_id, None) is not None:
                return
            raise KafkaError(ErrorCode.unknown_member_id)
        if instance_id and member_id not in ("", member.member_id):
            raise KafkaError(ErrorCode.fenced_instance_id)
        self._remove(group, member)

    def _remove(self, group: _Group, member: _Member) -> None:
        self._forget(group, member, ErrorCode.unknown_member_id)
        if group.state in (STABLE, COMPLETING):
            self._prepare(group)
        if group.state == PREPARING and not group.members:
            self._complete(group)
        else:
            self._complete_if_all(group)

    def _touch(self, group: _Group, member: _Member) -> None:
        """Start the member's session again."""
        self._stop_timer(member)
        loop = asyncio.get_running_loop()
        member.timer = loop.call_later(member.stored.session_ms / 1000, self._expire, group, member)

    def _expire(self, group: _Group, member: _Member) -> None:
        if group.members.get(member.member_id) is member and not _waits(member.joining):
            self._remove(group, member)

    def _stop_timer(self, member: _Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None

    async def _known(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[_Group, _Member]:
        group = await self._group(name, creates=False)
        if instance_id and (static := group.static_member(instance_id)) is not None and static.member_id != member_id:
            raise KafkaError(ErrorCode.fenced_instance_id)
        member = group.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        if generation != group.generation:
            raise KafkaError(ErrorCode.illegal_generation)
        return group, member

    # --- offsets ------------------------------------------------------------------------------

    async def commit(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Offsets,
    ) -> None:
        """Store a group's offsets; KafkaError. generation: -1 for a consumer that isn't a member."""
        if generation < 0 and not member_id:
            group = await self._group(name)
            if group.members:
                raise KafkaError(ErrorCode.unknown_member_id)
        else:
            group, member = await self._known(name, member_id, instance_id, generation)
            if group.state == COMPLETING:
                raise KafkaError(ErrorCode.rebalance_in_progress)
            self._touch(group, member)
        await self._store(group, offsets)

    async def ensure(self, name: str) -> None:
        """Create a group if it is missing: one that only commits offsets, in transactions."""
        group = await self._group(name)
        if group.version == ABSENT:
            await self._store(group)

    async def check_member(self, name: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """Raise KafkaError unless the consumer is a member of the group's current generation."""
        await self._known(name, member_id, instance_id, generation)

    async def delete_offsets(self, name: str, partitions: Iterable[tuple[str, int]]) -> set[str]:
        """Delete committed offsets but those of topics that members read, and return these topics; KafkaError."""
        group = await self._group(name)
        if group.members and group.protocol_type != _CONSUMERS:
            raise KafkaError(ErrorCode.non_empty_group)
        read = {topic for member in group.members.values() for topic in _topics_of(member.metadata(group.protocol))}
        await self.records.delete_offsets(name, [partition for partition in partitions if partition[0] not in read])
        return read

    # --- administration -----------------------------------------------------------------------

    async def names(self) -> list[tuple[str, str, str]]:
        """Return name, protocol type and state of all groups of the scope."""
        groups = []
        async for name, stored in self.records.all():
            known = self._groups.get(name)
            state = known.state if known is not None else STABLE if stored.members else EMPTY
            groups.append((name, stored.protocol_type, state))
        return groups

    async def describe(self, name: str) -> dict[str, Any]:
        """Return the fields of a group's description; a missing group is dead."""
        try:
            group = await self._group(name, creates=False)
        except KafkaError as error:
            if error.code != ErrorCode.unknown_member_id:
                raise
            return {"group_state": DEAD}
        return {
            "group_state": group.state,
            "protocol_type": group.protocol_type,
            "protocol_data": group.protocol,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.stored.instance_id,
                    "client_id": member.stored.client_id,
                    "client_host": member.stored.host,
                    "member_metadata": member.metadata(group.protocol),
                    "member_assignment": member.stored.assignment,
                }
                for member in group.members.values()
            ],
        }

    async def delete(self, name: str) -> None:
        """Delete a group without members and its offsets; KafkaError."""
        try:
            group = await self._group(name, creates=False)
        except KafkaError:
            raise KafkaError(ErrorCode.group_id_not_found) from None
        if group.members:
            raise KafkaError(ErrorCode.non_empty_group)
        await self.records.delete(name)
        self._drop(group)

    # --- storing ------------------------------------------------------------------------------

    async def _group(self, name: str, *, creates: bool = True) -> _Group:
        """Return a group; KafkaError if its name is invalid, or it is missing and shall not be created."""
        if not name or "\0" in name or len(name) > 255:
            raise KafkaError(ErrorCode.invalid_group_id)
        group = self._groups.get(name)
        if group is None:
            async with self._loading.setdefault(name, asyncio.Lock()):
                group = self._groups.get(name) or await self._load(name)
        if group.version == ABSENT and not creates and not group.members and not group.invited:
            raise KafkaError(ErrorCode.unknown_member_id)
        return group

    async def _load(self, name: str) -> _Group:
        stored, version = await self.records.read(name)
        group = _Group(name, version)
        if stored is not None:
            group.generation, group.protocol_type = stored.generation, stored.protocol_type
            group.protocol, group.leader = stored.protocol, stored.leader
            group.members = {member.member_id: _Member(member, member.size_bytes()) for member in stored.members}
            group.state = STABLE if group.members else EMPTY
            group.formed = stored.members
            for member in group.members.values():
                self._touch(group, member)
        if len(self._groups) >= KAFKA_GROUPS:
            idle = next((other for other in self._groups.values() if not other.members), None)
            if idle is None:
                raise KafkaError(ErrorCode.coordinator_not_available, f"this door has {KAFKA_GROUPS:,} groups")
            self._drop(idle)
        self._groups[name] = group
        return group

    async def _store(self, group: _Group, offsets: Offsets | None = None) -> None:
        """Store the group and offsets in one step; KafkaError not_coordinator if another door has changed it."""
        async with group.storing:
            if self._groups.get(group.name) is not group:  # it was dropped while this waited
                raise KafkaError(ErrorCode.not_coordinator)
            try:
                group.version = await self.records.write(group.name, group.version, group.record(), offsets or {})
            except ConditionFailedError:
                self._drop(group)
                raise KafkaError(ErrorCode.not_coordinator) from None
            except NadiError:
                self._drop(group)  # the change may be stored
                raise

    def _store_soon(self, group: _Group) -> None:
        async def store() -> None:
            try:
                await self._store(group)
            except NadiError:
                pass  # the group was dropped: the next request loads it

        task = asyncio.create_task(store(), name=f"store group {group.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _drop(self, group: _Group) -> None:
        """Forget a group, so that the next request loads it or goes to its coordinator."""
        if self._groups.get(group.name) is group:
            del self._groups[group.name]
            self._loading.pop(group.name, None)
        if group.timer is not None:
            group.timer.cancel()
        for member in list(group.members.values()):
            self._forget(group, member, ErrorCode.not_coordinator)

    def keep_only(self, is_own: Callable[[str], bool]) -> None:
        """Drop the groups that other doors coordinate now."""
        for group in list(self._groups.values()):
            if not is_own(group.name):
                self._drop(group)

    async def close(self) -> None:
        for group in list(self._groups.values()):
            self._drop(group)
        await asyncio.gather(*self._tasks, return_exceptions=True)


class MemberIdRequiredError(KafkaError):
    """A client must join again with the id that it gets."""

    def __init__(self, member_id: str) -> None:
        super().__init__(ErrorCode.member_id_required)
        self.member_id = member_id


def _topics_of(metadata: bytes) -> Sequence[str]:
    """Return the topics of a consumer's subscription, none if it isn't one; later versions only add fields."""
    try:
        check_lengths(ConsumerProtocolSubscription, metadata, _VERSION_BYTES)
        topics: Sequence[str] = _read_subscription(metadata, _VERSION_BYTES)[0].topics
        return topics
    except Exception:  # kio documents no common base of the errors of its readers
        return ()


def _waits(future: asyncio.Future[None] | None) -> bool:
    return future is not None and not future.done()


def _elected(group: _Group) -> str:
    """Return the common protocol that most members prefer."""
    common = group.common_protocols()
    votes: dict[str, int] = {}
    for member in group.members.values():
        choice = next((name for name, _ in member.stored.protocols if name in common), "")
        votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=lambda name: votes[name])
