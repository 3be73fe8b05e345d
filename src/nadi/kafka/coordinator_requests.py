"""Requests to coordinators: of consumer groups, of their offsets, and of transactions.

Methods are named as in Kafka's protocol.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from uuid import UUID

from nadi.access.permissions import Permission
from nadi.errors import NadiError, NotFoundError
from nadi.kafka.access import Access, Peer
from nadi.kafka.doors import Doors
from nadi.kafka.group_records import NO_OFFSET, CommittedOffset, Offsets
from nadi.kafka.groups import Groups, Join, MemberIdRequiredError
from nadi.kafka.messages import (
    NONE,
    UNKNOWN_OPERATIONS,
    ErrorCode,
    Fields,
    KafkaError,
    Request,
    code_of_call,
    coordinator_code,
    ms_of,
)
from nadi.kafka.producing import Producing
from nadi.kafka.topics import Topics
from nadi.kafka.transactions import (
    ABORTING,
    COMMITTING,
    EMPTY,
    ONGOING,
    STORING,
    ProducerInstance,
    Transactions,
)

_STATES = {  # of transactions, as Kafka names them
    EMPTY: "Empty",
    ONGOING: "Ongoing",
    COMMITTING: "PrepareCommit",
    STORING: "PrepareCommit",
    ABORTING: "PrepareAbort",
}
_KAFKA_STATES = {*_STATES.values(), "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead"}

_NO_TOPIC = UUID(int=0)


class CoordinatorRequests:
    """A door's requests to it as a coordinator."""

    def __init__(
        self,
        access: Access,
        topics: Topics,
        doors: Doors,
        groups: Groups,
        transactions: Transactions,
        producing: Producing,
    ) -> None:
        self._access, self._topics, self._doors, self._groups = access, topics, doors, groups
        self._transactions, self._producing = transactions, producing

    # --- members of groups --------------------------------------------------------------------

    async def join_group(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        session_ms = ms_of(body.session_timeout)
        join = Join(
            body.member_id,
            getattr(body, "group_instance_id", None),
            request.client,
            peer.host,
            session_ms,
            ms_of(body.rebalance_timeout) if hasattr(body, "rebalance_timeout") else session_ms,
            body.protocol_type,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols),
            takes_id=request.version >= 4,
        )
        try:
            self._access.check_group(peer, body.group_id)
            return await self._groups.join(body.group_id, join)
        except NadiError as error:
            member = error.member_id if isinstance(error, MemberIdRequiredError) else body.member_id
            empty = {
                "generation_id": NONE,
                "protocol_name": "" if request.version < 7 else None,
                "leader": "",
                "members": (),
            }
            return {"error_code": coordinator_code(error), "member_id": member, **empty}

    async def sync_group(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        try:
            self._access.check_group(peer, body.group_id)
            return await self._groups.sync(
                body.group_id,
                body.member_id,
                getattr(body, "group_instance_id", None),
                body.generation_id,
                (getattr(body, "protocol_type", None), getattr(body, "protocol_name", None)),
                {each.member_id: each.assignment for each in body.assignments},
            )
        except NadiError as error:
            return {"error_code": coordinator_code(error), "assignment": b""}

    async def heartbeat(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        try:
            self._access.check_group(peer, body.group_id)
            instance_id = getattr(body, "group_instance_id", None)
            await self._groups.heartbeat(body.group_id, body.member_id, instance_id, body.generation_id)
        except NadiError as error:
            return {"error_code": coordinator_code(error)}
        return {}

    async def leave_group(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        leaving = [(body.member_id, None)] if hasattr(body, "member_id") else None
        try:
            self._access.check_group(peer, body.group_id)
        except NadiError as error:
            return {"error_code": coordinator_code(error)}
        members = []
        for member_id, instance_id in leaving or [(each.member_id, each.group_instance_id) for each in body.members]:
            code = await code_of_call(self._groups.leave(body.group_id, member_id, instance_id))
            members.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": code})
        return {"members": members, "error_code": members[0]["error_code"] if leaving else ErrorCode.none}

    # --- offsets ------------------------------------------------------------------------------

    async def offset_commit(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        now_ms = time.time_ns() // 1_000_000
        offsets, failed = {}, {}
        for topic in body.topics:
            for part in topic.partitions:
                key = topic.name, part.partition_index
                try:
                    offsets[key] = await self._offset_of(peer, topic.name, part, now_ms)
                    failed[key] = ErrorCode.none
                except NadiError as error:
                    failed[key] = coordinator_code(error)
        code = await code_of_call(self._commit(peer, body, offsets))
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": part.partition_index,
                            "error_code": failed[topic.name, part.partition_index] or code,
                        }
                        for part in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
        }

    async def _offset_of(self, peer: Peer, name: str, asked: Any, now_ms: int) -> CommittedOffset:
        topic = await self._access.readable(peer, name)
        topic.check_partition(asked.partition_index)
        epoch = getattr(asked, "committed_leader_epoch", NONE)
        return CommittedOffset(
            asked.committed_offset, epoch, asked.committed_metadata, now_ms, topic.properties.topic_id
        )

    async def _commit(self, peer: Peer, body: Any, offsets: dict[tuple[str, int], CommittedOffset]) -> None:
        generation = getattr(body, "generation_id_or_member_epoch", getattr(body, "generation_id", NONE))
        self._access.check_group(peer, body.group_id)
        instance_id = getattr(body, "group_instance_id", None)
        await self._groups.commit(body.group_id, body.member_id, instance_id, generation, offsets)

    async def offset_fetch(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        if hasattr(body, "groups"):
            return {
                "groups": [
                    await self._committed(peer, group.group_id, group.topics, is_stable=body.require_stable)
                    for group in body.groups
                ]
            }
        is_stable = getattr(body, "require_stable", False)
        return await self._committed(peer, body.group_id, body.topics, is_stable=is_stable)

    async def _committed(self, peer: Peer, name: str, asked: Iterable[Any] | None, *, is_stable: bool) -> Fields:
        try:
            self._access.check_group(peer, name)
            committed = await self._of_existing_topics(await self._groups.records.committed(name))
            pending = await self._transactions.pending(name) if is_stable else set()
        except NadiError as error:
            code = coordinator_code(error)
            missing = {
                "committed_offset": NO_OFFSET,
                "committed_leader_epoch": NONE,
                "metadata": "",
                "error_code": code,
            }
            topics = [
                {
                    "name": topic.name,
                    "partitions": [{"partition_index": part, **missing} for part in topic.partition_indexes],
                }
                for topic in asked or ()
            ]
            return {"group_id": name, "topics": topics, "error_code": code}
        wanted: dict[str, list[int]] = {}
        if asked is None:
            for topic_name, partition in committed:
                if self._access.may_see_topic(peer, topic_name):
                    wanted.setdefault(topic_name, []).append(partition)
        else:
            wanted = {topic.name: list(topic.partition_indexes) for topic in asked}
        none = CommittedOffset(NO_OFFSET, NONE, "", 0, _NO_TOPIC)
        hidden = {topic_name for topic_name in wanted if not self._access.may_see_topic(peer, topic_name)}
        committed = {key: offset for key, offset in committed.items() if key[0] not in hidden}
        topics = [
            {
                "name": topic_name,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": (found := committed.get((topic_name, partition), none)).offset,
                        "committed_leader_epoch": found.leader_epoch,
                        "metadata": found.metadata,
                        "error_code": ErrorCode.topic_authorization_failed
                        if topic_name in hidden
                        else ErrorCode.unstable_offset_commit
                        if (topic_name, partition) in pending
                        else ErrorCode.none,
                    }
                    for partition in partitions
                ],
            }
            for topic_name, partitions in wanted.items()
        ]
        return {"group_id": name, "topics": topics}

    async def _of_existing_topics(self, committed: Offsets) -> Offsets:
        """Return the offsets of topics that haven't been deleted since; a new topic of the name begins without any."""
        ids = {}
        for name in {name for name, _ in committed}:
            with suppress(NotFoundError):
                ids[name] = (await self._topics.get(name)).properties.topic_id
        return {key: offset for key, offset in committed.items() if ids.get(key[0]) == offset.topic_id}

    async def offset_delete(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        partitions = [(topic.name, part.partition_index) for topic in body.topics for part in topic.partitions]
        try:
            self._access.require_group(peer, body.group_id, Permission.READ_UPDATE)
            self._access.check_group(peer, body.group_id)
            read = await self._groups.delete_offsets(body.group_id, partitions)
        except NadiError as error:
            return {"error_code": coordinator_code(error), "topics": ()}
        codes = dict.fromkeys(read, ErrorCode.group_subscribed_to_topic)
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": part.partition_index, "error_code": codes.get(topic.name, ErrorCode.none)}
                        for part in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
        }

    # --- administration of groups -------------------------------------------------------------

    async def describe_groups(self, peer: Peer, request: Request) -> Fields:
        groups = []
        for name in request.body.groups:
            known: Fields = {"group_id": name, "authorized_operations": UNKNOWN_OPERATIONS}
            try:
                self._access.check_group(peer, name)
                is_asked = getattr(request.body, "include_authorized_operations", False)
                known["authorized_operations"] = self._access.group_operations(peer, name, is_asked=is_asked)
                groups.append({**known, **await self._groups.describe(name)})
            except NadiError as error:
                groups.append({**known, "error_code": coordinator_code(error)})
        return {"groups": groups}

    async def list_groups(self, peer: Peer, request: Request) -> Fields:
        states = {state.lower() for state in getattr(request.body, "states_filter", ())}
        kinds = {kind.lower() for kind in getattr(request.body, "types_filter", ())}
        groups = []
        for name, protocol_type, state in await self._groups.names():
            is_own = self._doors.is_own("group", name) and (not states or state.lower() in states)
            if is_own and (not kinds or "classic" in kinds) and self._access.may_see_group(peer, name):
                listed = {
                    "group_id": name,
                    "protocol_type": protocol_type,
                    "group_state": state,
                    "group_type": "classic",
                }
                groups.append(listed)
        return {"groups": groups}

    async def delete_groups(self, peer: Peer, request: Request) -> Fields:
        results = []
        for name in request.body.groups_names:
            code = await code_of_call(self._delete_group(peer, name))
            results.append({"group_id": name, "error_code": code})
        return {"results": results}

    async def _delete_group(self, peer: Peer, name: str) -> None:
        self._access.require_group(peer, name, Permission.READ_UPDATE)
        self._access.check_group(peer, name)
        await self._groups.delete(name)

    # --- transactions -------------------------------------------------------------------------

    async def add_partitions_to_txn(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        topics = [(each.name, tuple(each.partitions)) for each in body.v3_and_below_topics]
        code = await code_of_call(self._add_partitions_of(peer, body, topics))
        results = [
            {
                "name": name,
                "results_by_partition": [
                    {"partition_index": partition, "partition_error_code": code} for partition in partitions
                ],
            }
            for name, partitions in topics
        ]
        return {"results_by_topic_v3_and_below": results}

    async def _add_partitions_of(self, peer: Peer, body: Any, topics: list[tuple[str, tuple[int, ...]]]) -> None:
        name = body.v3_and_below_transactional_id
        self._access.check_transaction(name)
        for topic_name, partitions in topics:
            self._access.require_topic(peer, topic_name, Permission.READ_UPDATE)
            topic = await self._topics.get(topic_name)
            for partition in partitions:
                topic.check_partition(partition)
        asked = [(topic_name, partition) for topic_name, partitions in topics for partition in partitions]
        producer_id, epoch = body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
        await self._transactions.add_partitions(self._access.producer(peer, name, producer_id, epoch), asked)

    async def add_offsets_to_txn(self, peer: Peer, request: Request) -> Fields:
        return {"error_code": await code_of_call(self._add_group(peer, request.body))}

    async def _add_group(self, peer: Peer, body: Any) -> None:
        self._access.check_transaction(body.transactional_id)
        self._access.require_group(peer, body.group_id)
        await self._transactions.add_group(self._producer(peer, body), body.group_id)

    async def end_txn(self, peer: Peer, request: Request) -> Fields:
        return {"error_code": await code_of_call(self._end(peer, request.body))}

    async def _end(self, peer: Peer, body: Any) -> None:
        self._access.check_transaction(body.transactional_id)
        await self._transactions.end(self._producer(peer, body), commits=body.committed)
        self._producing.end_transaction(body.producer_id)

    async def txn_offset_commit(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        code = await code_of_call(self._commit_in_transaction(peer, body))
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": part.partition_index, "error_code": code} for part in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
        }

    async def _commit_in_transaction(self, peer: Peer, body: Any) -> None:
        now_ms = time.time_ns() // 1_000_000
        offsets = {
            (topic.name, part.partition_index): await self._offset_of(peer, topic.name, part, now_ms)
            for topic in body.topics
            for part in topic.partitions
        }
        self._access.check_group(peer, body.group_id)
        member, generation = getattr(body, "member_id", ""), getattr(body, "generation_id", NONE)
        if member or generation >= 0:
            await self._groups.check_member(body.group_id, member, getattr(body, "group_instance_id", None), generation)
        else:
            await self._groups.ensure(body.group_id)
        await self._transactions.commit_offsets(self._producer(peer, body), body.group_id, offsets)

    async def list_transactions(self, peer: Peer, request: Request) -> Fields:
        body, now_ms = request.body, time.time_ns() // 1_000_000
        least_ms = getattr(body, "duration_filter", NONE)
        transactions = []
        async for name, stored in self._transactions.all():
            state = _STATES[stored.state]
            is_asked = (
                self._doors.is_own("transaction", name)
                and (not body.state_filters or state in body.state_filters)
                and (not body.producer_id_filters or stored.producer_id in body.producer_id_filters)
                and (least_ms < 0 or (stored.state != EMPTY and now_ms - stored.started_ms > least_ms))
            )
            if is_asked and self._access.may_see_transaction(peer, stored.user):
                listed = {"transactional_id": name, "producer_id": stored.producer_id, "transaction_state": state}
                transactions.append(listed)
        unknown = tuple(state for state in body.state_filters if state not in _KAFKA_STATES)
        return {"transaction_states": transactions, "unknown_state_filters": unknown}

    async def describe_transactions(self, peer: Peer, request: Request) -> Fields:
        states = []
        for name in request.body.transactional_ids:
            missing = {"transactional_id": name, "producer_id": NONE, "producer_epoch": NONE}
            try:
                states.append({"transactional_id": name, **await self._described_transaction(peer, name)})
            except NadiError as error:
                states.append({**missing, "error_code": coordinator_code(error)})
        return {"transaction_states": states}

    async def _described_transaction(self, peer: Peer, name: str) -> Fields:
        self._access.check_transaction(name)
        stored = await self._transactions.stored(name)
        if stored is None:
            raise KafkaError(ErrorCode.transactional_id_not_found)
        if not self._access.may_see_transaction(peer, stored.user):
            raise KafkaError(ErrorCode.transactional_id_authorization_failed)
        topics: dict[str, list[int]] = {}
        for topic, partition in stored.partitions:
            topics.setdefault(topic, []).append(partition)
        return {
            "transaction_state": _STATES[stored.state],
            "transaction_timeout": stored.timeout_ms,
            "transaction_start_time": NONE if stored.state == EMPTY else stored.started_ms,
            "producer_id": stored.producer_id,
            "producer_epoch": stored.epoch,
            "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
        }

    def _producer(self, peer: Peer, body: Any) -> ProducerInstance:
        return self._access.producer(peer, body.transactional_id, body.producer_id, body.producer_epoch)
