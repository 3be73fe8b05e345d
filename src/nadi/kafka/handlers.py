"""What a door does with each request: one method per API of Kafka, named as in Kafka's protocol.

https://kafka.apache.org/protocol
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from nadi.access.authentication import Gate
from nadi.access.permissions import Caller, Permission, reader_group_resource, scope_resource, stream_resource
from nadi.client.aio import StreamManager
from nadi.client.serializers.kafka import records_of
from nadi.errors import NadiError, NotFoundError, TruncatedError
from nadi.kafka.batches import NO_TIME, check_batches, placed
from nadi.kafka.doors import Door, Doors
from nadi.kafka.groups import NO_OFFSET, CommittedOffset, Groups, Join, MemberIdRequiredError
from nadi.kafka.messages import API_VERSIONS, PRODUCE, VERSIONS, ErrorCode, Fields, KafkaError, Request, code_of
from nadi.kafka.producing import Producing
from nadi.kafka.segment_log import SegmentLog
from nadi.kafka.topics import DEFAULTS, Topic, Topics, stream_of
from nadi.kafka.transactions import Transactions
from nadi.limits import KAFKA_FETCH_BYTES, KAFKA_MAX_WAIT_S
from nadi.model.streamcut import StreamCut

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_EPOCH = 0  # of partitions' leaders, which doors don't count
_NONE = -1
_GROUP, _TRANSACTION = 0, 1  # types of coordinators
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_DYNAMIC, _DEFAULT = 1, 5  # sources of properties
_SET, _DELETE = 0, 1  # operations on properties
_UNKNOWN_OPERATIONS = -(1 << 31)


@dataclass(slots=True)
class Peer:
    """A connection's client. caller: None if callers needn't authenticate."""

    host: str
    caller: Caller | None = None


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
        self._manager, self._topics, self._doors = manager, topics, doors
        self._groups, self._producing, self._gate = groups, producing, gate
        self._auto_creates = auto_creates
        self._transactions = transactions
        self._methods: dict[int, Callable[[Peer, Request], Awaitable[Fields]]] = {
            1: self._fetch,
            2: self._list_offsets,
            3: self._metadata,
            8: self._offset_commit,
            9: self._offset_fetch,
            10: self._find_coordinator,
            11: self._join_group,
            12: self._heartbeat,
            13: self._leave_group,
            14: self._sync_group,
            15: self._describe_groups,
            16: self._list_groups,
            API_VERSIONS: self._api_versions,
            19: self._create_topics,
            20: self._delete_topics,
            21: self._delete_records,
            22: self._init_producer_id,
            23: self._offset_for_leader_epoch,
            24: self._add_partitions_to_txn,
            25: self._add_offsets_to_txn,
            26: self._end_txn,
            28: self._txn_offset_commit,
            32: self._describe_configs,
            33: self._alter_configs,
            37: self._create_partitions,
            42: self._delete_groups,
            44: self._incremental_alter_configs,
            47: self._offset_delete,
            60: self._describe_cluster,
        }

    async def answer(self, peer: Peer, request: Request) -> Fields:
        """Return the fields of the response; an unexpected NadiError becomes the response's error code."""
        return await self._methods[request.key](peer, request)

    # --- permissions --------------------------------------------------------------------------

    def _require(self, peer: Peer, resource: str, permission: Permission, code: ErrorCode) -> None:
        if self._gate is not None:
            assert peer.caller is not None, "the connection is authenticated"
            try:
                self._gate.require(peer.caller, resource, permission)
            except NadiError as error:
                raise KafkaError(code, str(error)) from error

    def _require_topic(self, peer: Peer, name: str, permission: Permission = Permission.READ) -> None:
        resource = stream_resource(self._topics.scope, stream_of(name))
        self._require(peer, resource, permission, ErrorCode.topic_authorization_failed)

    def _require_group(self, peer: Peer, name: str, permission: Permission = Permission.READ) -> None:
        resource = reader_group_resource(self._topics.scope, name)
        self._require(peer, resource, permission, ErrorCode.group_authorization_failed)

    def _require_scope(self, peer: Peer, permission: Permission) -> None:
        resource = scope_resource(self._topics.scope)
        self._require(peer, resource, permission, ErrorCode.cluster_authorization_failed)

    async def _readable(self, peer: Peer, name: str) -> Topic:
        self._require_topic(peer, name)
        return await self._topics.get(name)

    # --- the cluster --------------------------------------------------------------------------

    async def _api_versions(self, peer: Peer, request: Request) -> Fields:
        return api_versions()

    def _brokers(self) -> list[Fields]:
        return [{"node_id": door.node_id, "host": door.host, "port": door.port} for door in self._doors.live]

    async def _describe_cluster(self, peer: Peer, request: Request) -> Fields:
        brokers = [{"broker_id": door.node_id, "host": door.host, "port": door.port} for door in self._doors.live]
        return {
            "cluster_id": self._topics.scope,
            "controller_id": self._doors.live[0].node_id,
            "brokers": brokers,
            "endpoint_type": 1,
            "cluster_authorized_operations": _UNKNOWN_OPERATIONS,
        }

    async def _metadata(self, peer: Peer, request: Request) -> Fields:
        asked = request.body.topics
        topics = []
        if asked is None:
            for name in await self._visible(peer):
                topics.append(await self._topic_metadata(peer, name, None, creates=False))
        else:
            creates = self._auto_creates and request.body.allow_auto_topic_creation
            for topic in asked:
                topic_id = getattr(topic, "topic_id", None)
                topics.append(await self._topic_metadata(peer, topic.name, topic_id, creates=creates))
        return {
            "brokers": self._brokers(),
            "cluster_id": self._topics.scope,
            "controller_id": self._doors.live[0].node_id,
            "topics": topics,
            "cluster_authorized_operations": _UNKNOWN_OPERATIONS,
        }

    async def _visible(self, peer: Peer) -> list[str]:
        names = await self._topics.names()
        if self._gate is None or peer.caller is None:
            return names
        caller, scope = peer.caller, self._topics.scope
        return [name for name in names if caller.may(stream_resource(scope, stream_of(name)), Permission.READ)]

    async def _topic_metadata(self, peer: Peer, name: str | None, topic_id: UUID | None, *, creates: bool) -> Fields:
        known: Fields = {"name": name, "topic_id": topic_id, "topic_authorized_operations": _UNKNOWN_OPERATIONS}
        try:
            if name is None:
                name = known["name"] = self._topics.name_of(topic_id or UUID(int=0))
            topic = await self._found_or_created(peer, name, creates=creates)
        except NadiError as error:
            return {**known, "error_code": code_of(error), "partitions": ()}
        partitions = [
            {
                "partition_index": partition,
                "leader_id": (leader := self._leader(topic, partition).node_id),
                "leader_epoch": _EPOCH,
                "replica_nodes": (leader,),
                "isr_nodes": (leader,),
            }
            for partition in range(topic.properties.partitions)
        ]
        return {**known, "topic_id": topic.properties.topic_id, "partitions": partitions}

    async def _found_or_created(self, peer: Peer, name: str, *, creates: bool) -> Topic:
        try:
            return await self._readable(peer, name)
        except NotFoundError:
            if not creates:
                raise
        self._require_scope(peer, Permission.READ_UPDATE)
        try:
            return await self._topics.create(name, -1, {})
        except NadiError as error:
            if code_of(error) != ErrorCode.topic_already_exists:
                raise
            return await self._topics.get(name)

    def _leader(self, topic: Topic, partition: int) -> Door:
        return self._doors.leader("partition", f"{topic.name}/{partition}")

    # --- producing ----------------------------------------------------------------------------

    async def produce(self, peer: Peer, request: Request) -> Awaitable[Fields]:
        """Queue a request's batches, in the order of requests; return an awaitable of the response's fields."""
        queued: list[tuple[str, list[tuple[int, Topic | None, Awaitable[int] | NadiError]]]] = []
        for topic_data in request.body.topic_data:
            partitions = []
            for data in topic_data.partition_data:
                topic: Topic | None = None
                try:
                    self._require_topic(peer, topic_data.name, Permission.READ_UPDATE)
                    topic = await self._topics.get(topic_data.name)
                    offset: Awaitable[int] | NadiError = await self._queue(topic, data, request.body)
                except NadiError as error:
                    offset = error
                partitions.append((data.index, topic, offset))
            queued.append((topic_data.name, partitions))
        return self._produced(queued)

    async def _queue(self, topic: Topic, data: Any, body: Any) -> Awaitable[int]:
        topic.check_partition(data.index)
        if body.acks not in (-1, 0, 1):
            raise KafkaError(ErrorCode.invalid_required_acks)
        batches = check_batches(data.records or b"", data.index)
        if not batches:
            raise KafkaError(ErrorCode.invalid_record, "a produce request without records")
        if any(len(batch.data) > topic.properties.max_batch_bytes for batch in batches):
            raise KafkaError(ErrorCode.message_too_large)
        if len({batch.producer_id for batch in batches}) > 1:
            raise KafkaError(ErrorCode.invalid_record, "the batches of a request have several producers")
        if not batches[0].is_transactional:
            return await self._producing.put(topic, data.index, batches)
        if body.transactional_id is None:
            raise KafkaError(ErrorCode.invalid_txn_state, "a transactional batch needs a transactional id")
        transaction = await self._transactions.stream_of_batch(
            body.transactional_id, batches[0].producer_id, batches[0].epoch, topic.name, data.index
        )
        return await self._producing.put(topic, data.index, batches, transaction)

    async def _produced(
        self, queued: list[tuple[str, list[tuple[int, Topic | None, Awaitable[int] | NadiError]]]]
    ) -> Fields:
        responses = []
        for name, partitions in queued:
            answers = [await self._stored(*partition) for partition in partitions]
            responses.append({"name": name, "partition_responses": answers})
        return {"responses": responses}

    async def _stored(self, index: int, topic: Topic | None, offset: Awaitable[int] | NadiError) -> Fields:
        try:
            if isinstance(offset, NadiError) or topic is None:
                raise offset if isinstance(offset, NadiError) else KafkaError(ErrorCode.unknown_topic_or_partition)
            return {"index": index, "base_offset": await offset, "log_start_offset": _NONE}
        except NadiError as error:
            return {
                "index": index,
                "error_code": code_of(error),
                "base_offset": _NONE,
                "error_message": str(error)[:500],
            }

    async def _init_producer_id(self, peer: Peer, request: Request) -> Fields:
        producer, epoch = getattr(request.body, "producer_id", _NONE), getattr(request.body, "producer_epoch", _NONE)
        if (name := request.body.transactional_id) is not None:
            self._check_transaction(name)
            timeout_ms = _ms(request.body.transaction_timeout)
            producer, epoch = await self._transactions.begin_producer(name, timeout_ms, producer, epoch)
            return {"producer_id": producer, "producer_epoch": epoch}
        if producer >= 0 and 0 <= epoch < (1 << 15) - 1:
            return {"producer_id": producer, "producer_epoch": epoch + 1}
        return {"producer_id": await self._topics.new_producer_id(), "producer_epoch": 0}

    # --- transactions -------------------------------------------------------------------------

    def _check_transaction(self, name: str) -> None:
        if not self._doors.is_own("transaction", name):
            raise KafkaError(ErrorCode.not_coordinator)

    async def _add_partitions_to_txn(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        topics = [(each.name, tuple(each.partitions)) for each in body.v3_and_below_topics]
        code = await self._code_of_call(self._add_partitions_of(peer, body, topics))
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
        self._check_transaction(name)
        for topic_name, partitions in topics:
            self._require_topic(peer, topic_name, Permission.READ_UPDATE)
            topic = await self._topics.get(topic_name)
            for partition in partitions:
                topic.check_partition(partition)
        asked = [(topic_name, partition) for topic_name, partitions in topics for partition in partitions]
        producer, epoch = body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
        await self._transactions.add_partitions(name, producer, epoch, asked)

    async def _add_offsets_to_txn(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        self._check_transaction(body.transactional_id)
        self._require_group(peer, body.group_id)
        await self._transactions.add_group(body.transactional_id, body.producer_id, body.producer_epoch, body.group_id)
        return {}

    async def _end_txn(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        self._check_transaction(body.transactional_id)
        await self._transactions.end(
            body.transactional_id, body.producer_id, body.producer_epoch, commits=body.committed
        )
        self._producing.end_transaction(body.producer_id)
        return {}

    async def _txn_offset_commit(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        now_ms = time.time_ns() // 1_000_000
        offsets = {
            (topic.name, part.partition_index): CommittedOffset(
                part.committed_offset, getattr(part, "committed_leader_epoch", _NONE), part.committed_metadata, now_ms
            )
            for topic in body.topics
            for part in topic.partitions
        }
        code = await self._code_of_call(self._commit_in_transaction(peer, body, offsets))
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

    async def _commit_in_transaction(
        self, peer: Peer, body: Any, offsets: dict[tuple[str, int], CommittedOffset]
    ) -> None:
        self._check_group(peer, body.group_id)
        member, generation = getattr(body, "member_id", ""), getattr(body, "generation_id", _NONE)
        if member or generation >= 0:
            await self._groups.check_member(body.group_id, member, getattr(body, "group_instance_id", None), generation)
        await self._transactions.commit_offsets(
            body.transactional_id, body.producer_id, body.producer_epoch, body.group_id, offsets
        )

    # --- fetching -----------------------------------------------------------------------------

    async def _fetch(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        deadline = time.monotonic() + min(_seconds(body.max_wait), KAFKA_MAX_WAIT_S)
        while True:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            logs: list[SegmentLog] = []
            fetch = _Fetch(min(max(body.max_bytes, 1), KAFKA_FETCH_BYTES))
            responses = []
            for asked in body.topics:
                name, topic_id = getattr(asked, "topic", None), getattr(asked, "topic_id", None)
                partitions = [
                    await self._fetch_partition(peer, name, topic_id, part, fetch, logs) for part in asked.partitions
                ]
                responses.append({"topic": name, "topic_id": topic_id, "partitions": partitions})
            wait_s = deadline - time.monotonic()
            if fetch.taken >= body.min_bytes or fetch.has_failed or wait_s <= 0:
                return {"responses": responses, "session_id": 0}
            try:
                for log in logs:
                    log.notify(waiter)
                if not any(log.version != version for log, version in zip(logs, fetch.versions, strict=True)):
                    await asyncio.wait([waiter], timeout=wait_s)
            finally:
                for log in logs:
                    log.forget(waiter)

    async def _fetch_partition(
        self, peer: Peer, name: str | None, topic_id: UUID | None, asked: Any, fetch: _Fetch, logs: list[SegmentLog]
    ) -> Fields:
        known = {
            "partition_index": asked.partition,
            "high_watermark": _NONE,
            "aborted_transactions": None,
            "records": b"",
        }
        try:
            topic = await self._readable(peer, name or self._topics.name_of(topic_id or UUID(int=0)))
            topic.check_partition(asked.partition)
            records = await self._records(topic, asked, fetch, logs)
            end = await topic.log.known_end(asked.partition)
            start = await topic.log.start_offset(asked.partition)
        except NadiError as error:
            fetch.has_failed = True
            if isinstance(error, KafkaError) and error.code == ErrorCode.offset_out_of_range:
                known |= await self._ends(topic, asked.partition)
            return {**known, "error_code": code_of(error)}
        return {
            **known,
            "high_watermark": end,
            "last_stable_offset": end,
            "log_start_offset": start,
            "records": records,
        }

    async def _ends(self, topic: Topic, partition: int) -> Fields:
        try:
            end, start = await topic.log.end_offset(partition), await topic.log.start_offset(partition)
        except NadiError:
            return {}
        return {"high_watermark": end, "last_stable_offset": end, "log_start_offset": start}

    async def _records(self, topic: Topic, asked: Any, fetch: _Fetch, logs: list[SegmentLog]) -> bytes:
        partition, offset = asked.partition, asked.fetch_offset
        log = await topic.log.waiting_log(partition)
        version = log.version
        if offset > await topic.log.known_end(partition) and offset > await topic.log.end_offset(partition):
            raise KafkaError(ErrorCode.offset_out_of_range)
        if offset < await topic.log.start_offset(partition):
            raise KafkaError(ErrorCode.offset_out_of_range)
        parts: list[bytes] = []
        size = 0
        most = min(asked.partition_max_bytes, fetch.most - fetch.taken)
        while size < most:
            try:
                found = await topic.log.batches_from(partition, offset)
            except TruncatedError:
                raise KafkaError(ErrorCode.offset_out_of_range) from None
            for each in found:
                if size + len(each.batch.data) > most and (size or fetch.taken):
                    most = size
                    break
                parts.append(placed(each.batch, each.offset))
                size += len(each.batch.data)
                offset = each.end
            if not found:
                break
        fetch.taken += size
        logs.append(log)
        fetch.versions.append(version)
        return b"".join(parts)

    async def _list_offsets(self, peer: Peer, request: Request) -> Fields:
        topics = []
        for asked in request.body.topics:
            partitions = [await self._offset_at(peer, asked.name, part) for part in asked.partitions]
            topics.append({"name": asked.name, "partitions": partitions})
        return {"topics": topics}

    async def _offset_at(self, peer: Peer, name: str, asked: Any) -> Fields:
        known: Fields = {"partition_index": asked.partition_index, "timestamp": _NONE, "offset": _NONE}
        try:
            topic = await self._readable(peer, name)
            topic.check_partition(asked.partition_index)
            found = await _found_offset(topic, asked.partition_index, asked.timestamp)
        except NadiError as error:
            return {**known, "error_code": code_of(error), "leader_epoch": _NONE}
        if found is None:
            return known
        return {**known, "offset": found[0], "timestamp": found[1], "leader_epoch": _EPOCH}

    async def _offset_for_leader_epoch(self, peer: Peer, request: Request) -> Fields:
        topics = []
        for asked in request.body.topics:
            partitions = []
            for part in asked.partitions:
                try:
                    topic = await self._readable(peer, asked.topic)
                    topic.check_partition(part.partition)
                    end = await topic.log.end_offset(part.partition)
                    partitions.append({"partition": part.partition, "leader_epoch": _EPOCH, "end_offset": end})
                except NadiError as error:
                    failed = {"error_code": code_of(error), "leader_epoch": _NONE, "end_offset": _NONE}
                    partitions.append({"partition": part.partition, **failed})
            topics.append({"topic": asked.topic, "partitions": partitions})
        return {"topics": topics}

    # --- groups -------------------------------------------------------------------------------

    async def _find_coordinator(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        kind = getattr(body, "key_type", _GROUP)
        keys = getattr(body, "coordinator_keys", None)
        found = [self._coordinator(kind, key) for key in ([body.key] if keys is None else keys)]
        return {**found[0], "coordinators": found} if keys is None else {"coordinators": found}

    def _coordinator(self, kind: int, key: str) -> Fields:
        if kind not in (_GROUP, _TRANSACTION):
            missing = {"node_id": _NONE, "host": "", "port": _NONE}
            return {"key": key, **missing, "error_code": ErrorCode.invalid_request, "error_message": "an unknown type"}
        door = self._doors.leader("group" if kind == _GROUP else "transaction", key)
        return {"key": key, "node_id": door.node_id, "host": door.host, "port": door.port}

    def _check_group(self, peer: Peer, name: str) -> None:
        self._require_group(peer, name)
        if not self._doors.is_own("group", name):
            raise KafkaError(ErrorCode.not_coordinator)

    async def _join_group(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        session_ms = _ms(body.session_timeout)
        join = Join(
            body.member_id,
            getattr(body, "group_instance_id", None),
            request.client,
            peer.host,
            session_ms,
            _ms(body.rebalance_timeout) if hasattr(body, "rebalance_timeout") else session_ms,
            body.protocol_type,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols),
            takes_id=request.version >= 4,
        )
        try:
            self._check_group(peer, body.group_id)
            return await self._groups.join(body.group_id, join)
        except NadiError as error:
            member = error.member_id if isinstance(error, MemberIdRequiredError) else body.member_id
            empty = {
                "generation_id": _NONE,
                "protocol_name": "" if request.version < 7 else None,
                "leader": "",
                "members": (),
            }
            return {"error_code": _group_code(error), "member_id": member, **empty}

    async def _sync_group(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        try:
            self._check_group(peer, body.group_id)
            return await self._groups.sync(
                body.group_id,
                body.member_id,
                getattr(body, "group_instance_id", None),
                body.generation_id,
                (getattr(body, "protocol_type", None), getattr(body, "protocol_name", None)),
                {each.member_id: each.assignment for each in body.assignments},
            )
        except NadiError as error:
            return {"error_code": _group_code(error), "assignment": b""}

    async def _heartbeat(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        try:
            self._check_group(peer, body.group_id)
            instance_id = getattr(body, "group_instance_id", None)
            await self._groups.heartbeat(body.group_id, body.member_id, instance_id, body.generation_id)
        except NadiError as error:
            return {"error_code": _group_code(error)}
        return {}

    async def _leave_group(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        leaving = [(body.member_id, None)] if hasattr(body, "member_id") else None
        try:
            self._check_group(peer, body.group_id)
        except NadiError as error:
            return {"error_code": _group_code(error)}
        members = []
        for member_id, instance_id in leaving or [(each.member_id, each.group_instance_id) for each in body.members]:
            code = await self._code_of_call(self._groups.leave(body.group_id, member_id, instance_id))
            members.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": code})
        return {"members": members, "error_code": members[0]["error_code"] if leaving else ErrorCode.none}

    async def _offset_commit(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        now_ms = time.time_ns() // 1_000_000
        offsets, failed = {}, {}
        for topic in body.topics:
            for part in topic.partitions:
                key = topic.name, part.partition_index
                failed[key] = await self._code_of_call(self._check_committable(peer, *key))
                if failed[key] == ErrorCode.none:
                    epoch = getattr(part, "committed_leader_epoch", _NONE)
                    offsets[key] = CommittedOffset(part.committed_offset, epoch, part.committed_metadata, now_ms)
        code = await self._code_of_call(self._commit(peer, body, offsets))
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

    async def _check_committable(self, peer: Peer, name: str, partition: int) -> None:
        topic = await self._readable(peer, name)
        topic.check_partition(partition)

    async def _commit(self, peer: Peer, body: Any, offsets: dict[tuple[str, int], CommittedOffset]) -> None:
        generation = getattr(body, "generation_id_or_member_epoch", getattr(body, "generation_id", _NONE))
        self._check_group(peer, body.group_id)
        instance_id = getattr(body, "group_instance_id", None)
        await self._groups.commit(body.group_id, body.member_id, instance_id, generation, offsets)

    async def _offset_fetch(self, peer: Peer, request: Request) -> Fields:
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
            self._check_group(peer, name)
            committed = await self._groups.committed(name)
            pending = await self._transactions.pending(name) if is_stable else set()
        except NadiError as error:
            code = _group_code(error)
            missing = {
                "committed_offset": NO_OFFSET,
                "committed_leader_epoch": _NONE,
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
                wanted.setdefault(topic_name, []).append(partition)
        else:
            wanted = {topic.name: list(topic.partition_indexes) for topic in asked}
        none = CommittedOffset(NO_OFFSET, _NONE, "", 0)
        topics = [
            {
                "name": topic_name,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": (found := committed.get((topic_name, partition), none)).offset,
                        "committed_leader_epoch": found.leader_epoch,
                        "metadata": found.metadata,
                        "error_code": ErrorCode.unstable_offset_commit
                        if (topic_name, partition) in pending
                        else ErrorCode.none,
                    }
                    for partition in partitions
                ],
            }
            for topic_name, partitions in wanted.items()
        ]
        return {"group_id": name, "topics": topics}

    async def _describe_groups(self, peer: Peer, request: Request) -> Fields:
        groups = []
        for name in request.body.groups:
            known: Fields = {"group_id": name, "authorized_operations": _UNKNOWN_OPERATIONS}
            try:
                self._check_group(peer, name)
                groups.append({**known, **await self._groups.describe(name)})
            except NadiError as error:
                groups.append({**known, "error_code": _group_code(error)})
        return {"groups": groups}

    async def _list_groups(self, peer: Peer, request: Request) -> Fields:
        states = {state.lower() for state in getattr(request.body, "states_filter", ())}
        kinds = {kind.lower() for kind in getattr(request.body, "types_filter", ())}
        groups = []
        for name, protocol_type, state in await self._groups.names():
            is_own = self._doors.is_own("group", name) and (not states or state.lower() in states)
            if is_own and (not kinds or "classic" in kinds) and self._may_see(peer, name):
                listed = {
                    "group_id": name,
                    "protocol_type": protocol_type,
                    "group_state": state,
                    "group_type": "classic",
                }
                groups.append(listed)
        return {"groups": groups}

    def _may_see(self, peer: Peer, group: str) -> bool:
        if self._gate is None or peer.caller is None:
            return True
        return peer.caller.may(reader_group_resource(self._topics.scope, group), Permission.READ)

    async def _delete_groups(self, peer: Peer, request: Request) -> Fields:
        results = []
        for name in request.body.groups_names:
            code = await self._code_of_call(self._delete_group(peer, name))
            results.append({"group_id": name, "error_code": code})
        return {"results": results}

    async def _delete_group(self, peer: Peer, name: str) -> None:
        self._require_group(peer, name, Permission.READ_UPDATE)
        self._check_group(peer, name)
        await self._groups.delete(name)

    async def _offset_delete(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        partitions = [(topic.name, part.partition_index) for topic in body.topics for part in topic.partitions]
        try:
            self._require_group(peer, body.group_id, Permission.READ_UPDATE)
            self._check_group(peer, body.group_id)
            await self._groups.delete_offsets(body.group_id, partitions)
        except NadiError as error:
            return {"error_code": _group_code(error), "topics": ()}
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [{"partition_index": part.partition_index} for part in topic.partitions],
                }
                for topic in body.topics
            ]
        }

    # --- topics -------------------------------------------------------------------------------

    async def _create_topics(self, peer: Peer, request: Request) -> Fields:
        topics = []
        for asked in request.body.topics:
            configured = {each.name: each.value for each in asked.configs if each.value is not None}
            partitions = len(asked.assignments) or asked.num_partitions
            try:
                self._require_scope(peer, Permission.READ_UPDATE)
                stream_of(asked.name)
                if request.body.validate_only:
                    topics.append(
                        {"name": asked.name, "num_partitions": partitions, "replication_factor": 1, "configs": ()}
                    )
                    continue
                topic = await self._topics.create(asked.name, partitions, configured)
            except NadiError as error:
                failed = {"error_code": code_of(error), "error_message": str(error)[:500], "num_partitions": _NONE}
                topics.append({"name": asked.name, **failed, "replication_factor": _NONE, "configs": ()})
                continue
            topics.append(
                {
                    "name": asked.name,
                    "topic_id": topic.properties.topic_id,
                    "num_partitions": topic.properties.partitions,
                    "replication_factor": 1,
                    "configs": _described(topic, None),
                }
            )
        return {"topics": topics}

    async def _delete_topics(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        asked = [(name, None) for name in getattr(body, "topic_names", ())]
        asked += [(topic.name, topic.topic_id) for topic in getattr(body, "topics", ())]
        responses = []
        for name, topic_id in asked:
            code = ErrorCode.none
            try:
                name = name if name is not None else self._topics.name_of(topic_id or UUID(int=0))
                self._require_topic(peer, name, Permission.READ_UPDATE)
                self._require_scope(peer, Permission.READ_UPDATE)
                await self._topics.delete(name)
            except NadiError as error:
                code = code_of(error)
            responses.append({"name": name, "topic_id": topic_id, "error_code": code})
        return {"responses": responses}

    async def _delete_records(self, peer: Peer, request: Request) -> Fields:
        topics = []
        for asked in request.body.topics:
            partitions = []
            for part in asked.partitions:
                try:
                    low = await self._deleted(peer, asked.name, part.partition_index, part.offset)
                    partitions.append({"partition_index": part.partition_index, "low_watermark": low})
                except NadiError as error:
                    failed = {"low_watermark": _NONE, "error_code": code_of(error)}
                    partitions.append({"partition_index": part.partition_index, **failed})
            topics.append({"name": asked.name, "partitions": partitions})
        return {"topics": topics}

    async def _deleted(self, peer: Peer, name: str, partition: int, offset: int) -> int:
        """Truncate a topic of one partition."""
        self._require_topic(peer, name, Permission.READ_UPDATE)
        topic = await self._topics.get(name)
        topic.check_partition(partition)
        if topic.properties.partitions > 1:
            raise KafkaError(
                ErrorCode.policy_violation,
                "records of a topic with several partitions go by retention, or nadi truncates",
            )
        end = await topic.log.end_offset(partition)
        offset = end if offset == _NONE else offset
        if not 0 <= offset <= end:
            raise KafkaError(ErrorCode.offset_out_of_range)
        if offset > await topic.log.start_offset(partition):
            positions = await topic.log.cut_at({partition: offset})
            await self._manager.truncate_stream(StreamCut(self._topics.scope, stream_of(name), positions))
            topic.log.forget_head()
        return await topic.log.start_offset(partition)

    async def _create_partitions(self, peer: Peer, request: Request) -> Fields:
        results = []
        for asked in request.body.topics:
            code, message = ErrorCode.none, None
            try:
                self._require_topic(peer, asked.name, Permission.READ_UPDATE)
                await self._add_partitions(asked.name, asked.count, validate_only=request.body.validate_only)
            except NadiError as error:
                code, message = code_of(error), str(error)[:500]
            results.append({"name": asked.name, "error_code": code, "error_message": message})
        return {"results": results}

    async def _add_partitions(self, name: str, count: int, *, validate_only: bool) -> None:
        topic = await self._topics.get(name)
        if count <= topic.properties.partitions:
            raise KafkaError(
                ErrorCode.invalid_partitions, f"topic {name} has {topic.properties.partitions} partitions: ask for more"
            )
        if not validate_only:
            await self._topics.change(name, partitions=count)

    async def _describe_configs(self, peer: Peer, request: Request) -> Fields:
        results = []
        for asked in request.body.resources:
            known: Fields = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
            try:
                results.append({**known, "configs": await self._configs(peer, asked)})
            except NadiError as error:
                results.append(
                    {**known, "error_code": code_of(error), "error_message": str(error)[:500], "configs": ()}
                )
        return {"results": results}

    async def _configs(self, peer: Peer, asked: Any) -> list[Fields]:
        if asked.resource_type == _BROKER_RESOURCE:
            return [_property(name, value, _DEFAULT, read_only=True) for name, value in _BROKER_PROPERTIES.items()]
        if asked.resource_type != _TOPIC_RESOURCE:
            raise KafkaError(ErrorCode.invalid_request, "only topics and brokers have properties")
        return _described(await self._readable(peer, asked.resource_name), asked.configuration_keys)

    async def _alter_configs(self, peer: Peer, request: Request) -> Fields:
        return await self._altered(
            peer,
            request,
            lambda resource, _: {each.name: each.value for each in resource.configs if each.value is not None},
        )

    async def _incremental_alter_configs(self, peer: Peer, request: Request) -> Fields:
        def changed(resource: Any, configured: dict[str, str]) -> dict[str, str]:
            for each in resource.configs:
                if each.config_operation not in (_SET, _DELETE):
                    raise KafkaError(ErrorCode.invalid_request, "topics' properties aren't lists: set or delete them")
                configured.pop(each.name, None)
                if each.config_operation == _SET and each.value is not None:
                    configured[each.name] = each.value
            return configured

        return await self._altered(peer, request, changed)

    async def _altered(
        self, peer: Peer, request: Request, changed: Callable[[Any, dict[str, str]], dict[str, str]]
    ) -> Fields:
        responses = []
        for resource in request.body.resources:
            code, message = ErrorCode.none, None
            try:
                if resource.resource_type != _TOPIC_RESOURCE:
                    raise KafkaError(ErrorCode.invalid_request, "only topics' properties can be changed")
                self._require_topic(peer, resource.resource_name, Permission.READ_UPDATE)
                topic = await self._topics.get(resource.resource_name)
                configured = changed(resource, dict(topic.properties.configured))
                if not request.body.validate_only:
                    await self._topics.change(resource.resource_name, configured=configured)
            except NadiError as error:
                code, message = code_of(error), str(error)[:500]
            known = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
            responses.append({**known, "error_code": code, "error_message": message})
        return {"responses": responses}

    async def _code_of_call(self, call: Awaitable[None]) -> ErrorCode:
        try:
            await call
        except NadiError as error:
            return _group_code(error)
        return ErrorCode.none


@dataclass(slots=True)
class _Fetch:
    """The limits and the state of a fetch. versions: of the logs that it may wait for."""

    most: int
    taken: int = 0
    has_failed: bool = False
    versions: list[int] = field(default_factory=list)


_BROKER_PROPERTIES = {"auto.create.topics.enable": "true", "log.message.timestamp.type": "CreateTime"}


def api_versions() -> Fields:
    """Return the implemented versions of each API."""
    versions = {**VERSIONS, PRODUCE: (0, VERSIONS[PRODUCE][1])}  # librdkafka derives its codecs from version 0
    return {
        "api_keys": [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in versions.items()]
    }


async def _found_offset(topic: Topic, partition: int, timestamp: int) -> tuple[int, int] | None:
    """Return offset and timestamp for a timestamp or one of the special values; None if no record is that late."""
    if timestamp in (_LATEST,):
        return await topic.log.end_offset(partition), _NONE
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return await topic.log.start_offset(partition), _NONE
    if timestamp == _LATEST_TIERED:
        return None
    if timestamp == _MAX_TIMESTAMP:
        timestamp = (await topic.log.tail(partition)).state(partition)[1]
        if timestamp == NO_TIME:
            return None
    if timestamp < 0:
        raise KafkaError(ErrorCode.unsupported_version)
    start = await topic.log.start_offset(partition)
    for found in await topic.log.batches_since(partition, timestamp):
        for record in records_of(found.batch.data):
            if record.timestamp_ms >= timestamp and found.offset + record.delta >= start:
                return found.offset + record.delta, record.timestamp_ms
    return None


def _described(topic: Topic, names: Iterable[str] | None) -> list[Fields]:
    properties = topic.properties
    known = {**DEFAULTS, **properties.configured}
    return [
        _property(name, value, _DYNAMIC if name in properties.configured else _DEFAULT)
        for name, value in known.items()
        if names is None or name in names
    ]


def _property(name: str, value: str, source: int, *, read_only: bool = False) -> Fields:
    return {"name": name, "value": value, "config_source": source, "read_only": read_only}


def _group_code(error: NadiError) -> ErrorCode:
    code = code_of(error)
    return ErrorCode.coordinator_not_available if code == ErrorCode.leader_not_available else code


def _seconds(wait: timedelta) -> float:
    return max(0.0, wait.total_seconds())


def _ms(wait: timedelta) -> int:
    return round(wait.total_seconds() * 1000)
