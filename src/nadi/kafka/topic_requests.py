"""Requests about topics: their metadata, their properties, and creating, changing and deleting them.

Methods are named as in Kafka's protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from nadi.access.permissions import Permission
from nadi.client.aio import StreamManager
from nadi.errors import NadiError
from nadi.kafka.access import Access, Peer
from nadi.kafka.doors import Door, Doors
from nadi.kafka.messages import LEADER_EPOCH, NONE, UNKNOWN_OPERATIONS, ErrorCode, Fields, KafkaError, Request, code_of
from nadi.kafka.topics import DEFAULTS, Topic, Topics, edit_property, stream_of
from nadi.model.streamcut import StreamCut

_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_DYNAMIC, _DEFAULT = 1, 5  # sources of properties
_BROKER_PROPERTIES = {"auto.create.topics.enable": "true", "log.message.timestamp.type": "CreateTime"}


class TopicRequests:
    """A door's requests about topics. auto_creates: whether asking for a missing topic creates it."""

    def __init__(
        self, access: Access, manager: StreamManager, topics: Topics, doors: Doors, *, auto_creates: bool
    ) -> None:
        self._access, self._manager, self._topics, self._doors = access, manager, topics, doors
        self._auto_creates = auto_creates

    # --- metadata -----------------------------------------------------------------------------

    async def metadata(self, peer: Peer, request: Request) -> Fields:
        asked, is_allowed = request.body.topics, getattr(request.body, "include_topic_authorized_operations", False)
        topics = []
        if asked is None:
            for name in await self._access.visible(peer):
                topics.append(await self._topic_metadata(peer, name, None, creates=False))
        else:
            creates = self._auto_creates and request.body.allow_auto_topic_creation
            for name, topic_id in dict.fromkeys((each.name, getattr(each, "topic_id", None)) for each in asked):
                topics.append(await self._topic_metadata(peer, name, topic_id, creates=creates))
        for topic in topics if is_allowed else ():
            topic["topic_authorized_operations"] = self._access.topic_operations(peer, topic["name"] or "")
        return {
            "brokers": [{"node_id": door.node_id, "host": door.host, "port": door.port} for door in self._doors.live],
            "cluster_id": self._topics.scope,
            "controller_id": self._doors.own.node_id,
            "topics": topics,
            "cluster_authorized_operations": self._access.cluster_operations(
                peer, is_asked=getattr(request.body, "include_cluster_authorized_operations", False)
            ),
        }

    async def _topic_metadata(self, peer: Peer, name: str | None, topic_id: UUID | None, *, creates: bool) -> Fields:
        known: Fields = {"name": name, "topic_id": topic_id, "topic_authorized_operations": UNKNOWN_OPERATIONS}
        try:
            if topic_id is not None or name is None:  # Java's admin client leaves the name empty
                name = known["name"] = self._topics.name_of(topic_id or UUID(int=0))
            topic = await self._access.found_or_created(peer, name, creates=creates)
        except NadiError as error:
            return {**known, "error_code": code_of(error), "partitions": ()}
        partitions = [
            {
                "partition_index": partition,
                "leader_id": (leader := self._leader(topic, partition).node_id),
                "leader_epoch": LEADER_EPOCH,
                "replica_nodes": (leader,),
                "isr_nodes": (leader,),
            }
            for partition in range(topic.properties.partitions)
        ]
        return {**known, "topic_id": topic.properties.topic_id, "partitions": partitions}

    def _leader(self, topic: Topic, partition: int) -> Door:
        return self._doors.leader("partition", f"{topic.name}/{partition}")

    # --- topics -------------------------------------------------------------------------------

    async def create_topics(self, peer: Peer, request: Request) -> Fields:
        topics = []
        for asked in request.body.topics:
            configured = {each.name: each.value for each in asked.configs if each.value is not None}
            partitions = len(asked.assignments) or asked.num_partitions
            try:
                self._access.require_scope(peer, Permission.READ_UPDATE)
                if request.body.validate_only:
                    count = await self._topics.check_new(asked.name, partitions, configured)
                    topics.append({"name": asked.name, "num_partitions": count, "replication_factor": 1, "configs": ()})
                    continue
                topic = await self._topics.create(asked.name, partitions, configured)
            except NadiError as error:
                failed = {"error_code": code_of(error), "error_message": str(error)[:500], "num_partitions": NONE}
                topics.append({"name": asked.name, **failed, "replication_factor": NONE, "configs": ()})
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

    async def delete_topics(self, peer: Peer, request: Request) -> Fields:
        body = request.body
        asked = [(name, None) for name in getattr(body, "topic_names", ())]
        asked += [(topic.name, topic.topic_id) for topic in getattr(body, "topics", ())]
        responses = []
        for name, topic_id in asked:
            code = ErrorCode.none
            try:
                name = name if name is not None else self._topics.name_of(topic_id or UUID(int=0))
                self._access.require_topic(peer, name, Permission.READ_UPDATE)
                self._access.require_scope(peer, Permission.READ_UPDATE)
                await self._topics.delete(name)
            except NadiError as error:
                code = code_of(error)
            responses.append({"name": name, "topic_id": topic_id, "error_code": code})
        return {"responses": responses}

    async def delete_records(self, peer: Peer, request: Request) -> Fields:
        topics = []
        for asked in request.body.topics:
            ends = {part.partition_index: part.offset for part in asked.partitions}
            topics.append({"name": asked.name, "partitions": await self._deleted(peer, asked.name, ends)})
        return {"topics": topics}

    async def _deleted(self, peer: Peer, name: str, ends: dict[int, int]) -> list[Fields]:
        """Delete the records of partitions before these offsets; return the answers."""
        answers, starts = {}, {}
        for partition, offset in ends.items():
            try:
                self._access.require_topic(peer, name, Permission.READ_UPDATE)
                topic = await self._topics.get(name)
                topic.check_partition(partition)
                end = await topic.log.end_offset(partition)
                starts[partition] = end if offset == NONE else offset
                if not 0 <= starts[partition] <= end:
                    del starts[partition]
                    raise KafkaError(ErrorCode.offset_out_of_range)
            except NadiError as error:
                answers[partition] = {"low_watermark": NONE, "error_code": code_of(error)}
        if starts:
            try:
                lows = await self._begun(await self._topics.get(name), starts)
                answers |= {partition: {"low_watermark": low} for partition, low in lows.items()}
            except NadiError as error:
                answers |= {each: {"low_watermark": NONE, "error_code": code_of(error)} for each in starts}
        return [{"partition_index": partition, **answers[partition]} for partition in ends]

    async def _begun(self, topic: Topic, starts: dict[int, int]) -> dict[int, int]:
        """Let partitions begin at offsets, and truncate the stream where all have begun; return their beginnings."""
        if any([offset > await topic.log.start_offset(partition) for partition, offset in starts.items()]):
            await topic.log.raise_starts(starts)
        if (positions := await topic.log.start_cut()) is not None:
            await self._manager.truncate_stream(StreamCut(self._topics.scope, stream_of(topic.name), positions))
            topic.log.forget_head()
        return {partition: await topic.log.start_offset(partition) for partition in starts}

    async def create_partitions(self, peer: Peer, request: Request) -> Fields:
        results = []
        for asked in request.body.topics:
            code, message = ErrorCode.none, None
            try:
                self._access.require_topic(peer, asked.name, Permission.READ_UPDATE)
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

    # --- properties ---------------------------------------------------------------------------

    async def describe_configs(self, peer: Peer, request: Request) -> Fields:
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
        return _described(await self._access.readable(peer, asked.resource_name), asked.configuration_keys)

    async def alter_configs(self, peer: Peer, request: Request) -> Fields:
        return await self._altered(
            peer,
            request,
            lambda resource, _: {each.name: each.value for each in resource.configs if each.value is not None},
        )

    async def incremental_alter_configs(self, peer: Peer, request: Request) -> Fields:
        def changed(resource: Any, configured: dict[str, str]) -> dict[str, str]:
            for each in resource.configs:
                edit_property(configured, each.name, each.config_operation, each.value)
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
                self._access.require_topic(peer, resource.resource_name, Permission.READ_UPDATE)
                topic = await self._topics.get(resource.resource_name)
                configured = changed(resource, dict(topic.properties.configured))
                if not request.body.validate_only:
                    await self._topics.change(resource.resource_name, configured=configured)
            except NadiError as error:
                code, message = code_of(error), str(error)[:500]
            known = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
            responses.append({**known, "error_code": code, "error_message": message})
        return {"responses": responses}


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
