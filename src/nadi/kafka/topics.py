"""Topics: the streams of one scope, with their Kafka properties in the streams' tags.

`kafka.partitions=12` marks a topic; `kafka.id=…` is its identity, and `kafka.NAME=VALUE` a property that nadi only
reports. `retention.ms` and `retention.bytes` become the stream's retention.

Names of topics often contain underscores, which names of streams can't:

>>> stream_of("my_topic")
'my-.-topic'
>>> topic_of("my-.-topic")
'my_topic'
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

import msgspec

from nadi.client.aio import StreamManager
from nadi.client.exports import RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.idempotent.writer import StreamShape
from nadi.client.manager.streams import stores_of
from nadi.client.tables.catalog import entries_of, remove_keys
from nadi.client.tables.table import ABSENT
from nadi.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    InvalidArgumentError,
    NotFoundError,
    StreamRecreatedError,
)
from nadi.kafka.messages import ErrorCode, KafkaError
from nadi.kafka.segment_log import ChunkCache, LogStorage
from nadi.kafka.topic_log import TopicLog, enough_partitions
from nadi.limits import (
    KAFKA_BATCH_BYTES,
    KAFKA_PARTITIONS,
    KAFKA_TOPIC_CACHED_S,
    KAFKA_TOPICS_A_TURN,
    MAX_EVENT_BYTES,
    NAME_MAX_CHARS,
)
from nadi.naming import KAFKA_TABLE, check_name
from nadi.process.segment_follower import check_same

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_UNDERSCORE = "-.-"
_TAG = "kafka."
PARTITIONS, ID = "partitions", "id"
RETENTION_MS, RETENTION_BYTES = "retention.ms", "retention.bytes"
KEEP_ALL = "-1"
_TIMESTAMP_TYPE, _LOG_APPEND_TIME = "message.timestamp.type", "LogAppendTime"
DEFAULTS = {  # the properties that clients ask for, with nadi's behaviour as values
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": str(KAFKA_BATCH_BYTES),
    _TIMESTAMP_TYPE: "CreateTime",
    "min.insync.replicas": "1",
    RETENTION_BYTES: KEEP_ALL,
    RETENTION_MS: KEEP_ALL,
    "unclean.leader.election.enable": "false",
}
_LISTS = {"cleanup.policy"}  # of the properties: values with commas between
_IGNORED = {  # properties of Kafka's storage, accepted without an effect
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "message.format.version",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "preallocate",
    "remote.storage.enable",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
}
PRODUCER_BITS = 20  # of a producer's id, below the time of its creation
_UNKNOWN_USERS = b"unknown-users"
_PRODUCERS, _PLAIN, _OFFSETS = b"producer", "plain/", "offsets/"
_SCALING = ScalingPolicy.by_data_rate(8 * 1024)  # of a new topic's stream


def stream_of(topic: str) -> str:
    """Return the name of a topic's stream; KafkaError if a topic or its stream can't have that name."""
    if not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
        raise KafkaError(ErrorCode.invalid_topic_exception, f"{topic[:249]!r} is not a valid name of a topic")
    stream = topic.replace("_", _UNDERSCORE)
    if topic_of(stream) != topic or len(stream) > NAME_MAX_CHARS:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"{topic!r} can't be the name of a stream: choose another")
    return stream


def topic_of(stream: str) -> str:
    return stream.replace(_UNDERSCORE, "_")


@dataclass(frozen=True, slots=True)
class TopicProperties:
    """A topic's stored properties. configured: those that were set, by name."""

    name: str
    topic_id: UUID
    partitions: int
    configured: Mapping[str, str]

    def value(self, name: str) -> str:
        return self.configured.get(name, DEFAULTS.get(name, ""))

    @property
    def max_batch_bytes(self) -> int:
        return int(self.value("max.message.bytes"))

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.value("cleanup.policy")

    @property
    def has_append_times(self) -> bool:
        """Whether records get the time of their storing."""
        return self.value(_TIMESTAMP_TYPE) == _LOG_APPEND_TIME


class _PlainTopic(msgspec.Struct, frozen=True, array_like=True):
    """The record of a stream that wasn't created as a topic. segment: one of the stream's, which a later
    stream of the same name doesn't have."""

    topic_id: UUID
    partitions: int
    segment: int


class Topic:
    """A topic that this door serves: its properties, its logs, the segments that producers write to."""

    def __init__(self, properties: TopicProperties, log: TopicLog, shape: StreamShape) -> None:
        self.properties, self.log, self.shape = properties, log, shape
        self.read_at = time.monotonic()

    @property
    def name(self) -> str:
        return self.properties.name

    def check_partition(self, partition: int) -> None:
        if not 0 <= partition < self.properties.partitions:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {self.name} has {self.properties.partitions} partitions, not number {partition}",
            )


class Topics:
    """The topics of a scope, as one door serves them.

    partitions: of a topic that is created without a number. on_closed: called with each topic that was deleted or
    replaced.
    """

    def __init__(
        self,
        manager: StreamManager,
        scope: str,
        partitions: int,
        chunks: ChunkCache,
        on_closed: Callable[[str], object],
    ) -> None:
        self.scope, self.table = scope, manager.table(scope, KAFKA_TABLE)
        self._manager, self._stores = manager, stores_of(manager)
        self._partitions, self._chunks = partitions, chunks
        self._on_closed = on_closed
        self._topics: dict[str, Topic] = {}
        self._names: dict[UUID, str] = {}
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._gets = 0

    async def prepare(self) -> None:
        """Create the scope, its table and the key for logins of unknown users if they are missing."""
        await self._manager.create_scope(self.scope)
        await self.table.create()
        with suppress(ConditionFailedError):  # there is one
            await self.table.put(_UNKNOWN_USERS, secrets.token_bytes(32), ABSENT)
        stored = await self.table.get(_UNKNOWN_USERS)
        assert stored is not None, "it was stored"
        self.unknown_users_key = bytes(stored.value)

    # --- finding ------------------------------------------------------------------------------

    async def get(self, name: str) -> Topic:
        """Return a topic; KafkaError if its name is invalid, StreamNotFoundError."""
        self._gets += 1
        if self._gets % KAFKA_TOPICS_A_TURN == 0:  # a request may name a topic tens of thousands of times
            await asyncio.sleep(0)
        topic = self._topics.get(name)
        if topic is not None and time.monotonic() - topic.read_at < KAFKA_TOPIC_CACHED_S:
            return topic
        stream = stream_of(name)
        async with self._reading.setdefault(name, asyncio.Lock()):
            topic = self._topics.get(name)
            if topic is not None and time.monotonic() - topic.read_at < KAFKA_TOPIC_CACHED_S:
                return topic
            try:
                properties = (await self._read(name, stream))[1]
            except NotFoundError:
                if topic is not None:
                    self._close(name)
                    await self._remove_records(name)
                raise
            if topic is None or topic.properties.topic_id != properties.topic_id:
                self._close(name)
                if topic is not None:
                    await self._remove_records(name, besides=properties)
                topic = self._opened(properties, stream)
            elif topic.properties.partitions != properties.partitions:
                topic.log.close()
                topic.log = self._log(properties, stream)
            topic.properties, topic.read_at = properties, time.monotonic()
            return topic

    async def _read(self, name: str, stream: str) -> tuple[StreamConfiguration, TopicProperties]:
        """Return a stream's configuration and its properties as a topic."""
        configuration = await self._manager.stream_configuration(self.scope, stream)
        configured = dict(tag[len(_TAG) :].split("=", 1) for tag in configuration.tags if _is_property(tag))
        partitions, topic_id = configured.pop(PARTITIONS, None), configured.pop(ID, None)
        if (retention := configuration.retention) is not None:
            kind = RETENTION_MS if retention.kind == RetentionPolicy.by_time(1).kind else RETENTION_BYTES
            configured[kind] = str(retention.minimum)
        if partitions is None or topic_id is None:
            plain = await self._plain(name, stream)
            count = plain.partitions if partitions is None else int(partitions)
            return configuration, TopicProperties(name, plain.topic_id, count, configured)
        return configuration, TopicProperties(name, UUID(topic_id), int(partitions), configured)

    async def _plain(self, name: str, stream: str) -> _PlainTopic:
        """Return the record of a stream that wasn't created as a topic, with partitions enough for its segments, and
        never fewer than before."""
        key = (_PLAIN + name).encode()
        while True:
            entry = await self.table.get(key)
            stored = None if entry is None else msgspec.msgpack.decode(entry.value, type=_PlainTopic)
            if stored is not None:
                try:
                    await check_same(self._stores, self.scope, stream, [stored.segment], "")
                except StreamRecreatedError:
                    stored = None
            segments = await self._stores.controller.current_segments(self.scope, stream)
            known = self._partitions if stored is None else stored.partitions
            count = enough_partitions(segments, known) if segments else known
            if stored is not None and count == known:
                return stored
            head = await self._stores.controller.head(self.scope, stream)
            changed = _PlainTopic(uuid4() if stored is None else stored.topic_id, count, max(head.positions))
            with suppress(ConditionFailedError):
                version = ABSENT if entry is None else entry.version
                await self.table.put(key, msgspec.msgpack.encode(changed), version)
                return changed

    def name_of(self, topic_id: UUID) -> str:
        """Return the name of a topic that this door has served; KafkaError."""
        name = self._names.get(topic_id)
        if name is None:
            raise KafkaError(ErrorCode.unknown_topic_id, f"this door hasn't seen a topic with id {topic_id}")
        return name

    async def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        streams = await self._manager.list_streams(self.scope)
        return sorted(topic_of(stream) for stream in streams)

    def _opened(self, properties: TopicProperties, stream: str) -> Topic:
        shape = StreamShape(self._stores, self.scope, stream)
        topic = Topic(properties, self._log(properties, stream), shape)
        self._topics[properties.name] = topic
        self._names[properties.topic_id] = properties.name
        return topic

    def _log(self, properties: TopicProperties, stream: str) -> TopicLog:
        storage = LogStorage(self._stores, self.scope, stream, self.table, _rows_of(properties), self._chunks)
        return TopicLog(storage, properties.partitions)

    def _close(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._names.pop(topic.properties.topic_id, None)
            topic.log.close()
            self._on_closed(name)

    def close(self) -> None:
        for name in list(self._topics):
            self._close(name)

    # --- changing -----------------------------------------------------------------------------

    async def check_new(self, name: str, partitions: int, configured: Mapping[str, str]) -> int:
        """Return the number of partitions that `create` would give; its errors."""
        stream, partitions, _ = self._checked(name, partitions, configured)
        with suppress(NotFoundError):
            await self._manager.stream_configuration(self.scope, stream)
            raise AlreadyExistsError("topic", name)
        return partitions

    async def create(self, name: str, partitions: int, configured: Mapping[str, str]) -> Topic:
        """Create a topic; AlreadyExistsError, KafkaError. partitions: -1 for the door's number."""
        stream, partitions, (retention, others) = self._checked(name, partitions, configured)
        tags = {PARTITIONS: str(partitions), ID: uuid4().hex, **others}
        configuration = StreamConfiguration(
            _SCALING, retention, tuple(f"{_TAG}{key}={value}" for key, value in tags.items())
        )
        if not await self._stores.controller.create_stream(self.scope, stream, configuration):
            raise AlreadyExistsError("topic", name)
        return await self.get(name)

    def _checked(
        self, name: str, partitions: int, configured: Mapping[str, str]
    ) -> tuple[str, int, tuple[RetentionPolicy | None, dict[str, str]]]:
        partitions = self._partitions if partitions == -1 else partitions
        check_partitions(partitions)
        return check_name("stream", stream_of(name)), partitions, _retention_and_others(configured)

    async def change(
        self, name: str, *, partitions: int | None = None, configured: Mapping[str, str] | None = None
    ) -> None:
        """Replace the number of partitions, or the properties."""
        stream = stream_of(name)
        configuration, properties = await self._read(name, stream)
        partitions = properties.partitions if partitions is None else partitions
        check_partitions(partitions)
        retention, others = _retention_and_others(properties.configured if configured is None else configured)
        tags = {PARTITIONS: str(partitions), ID: properties.topic_id.hex, **others}
        kept = [tag for tag in configuration.tags if not tag.startswith(_TAG)]
        changed = replace(
            configuration,
            retention=retention,
            tags=(*kept, *(f"{_TAG}{key}={value}" for key, value in tags.items())),
        )
        await self._stores.controller.update_stream(self.scope, stream, changed)
        if (topic := self._topics.get(name)) is not None:
            topic.read_at = float("-inf")

    async def new_producer_id(self) -> int:
        """Return an id that no other producer of the scope has; it starts with the present time in ms."""
        while True:
            stored = await self.table.get(_PRODUCERS)
            number = 0 if stored is None else int(stored.value)
            try:
                version = ABSENT if stored is None else stored.version
                await self.table.put(_PRODUCERS, b"%d" % (number + 1), version)
            except ConditionFailedError:
                continue
            return time.time_ns() // 1_000_000 << PRODUCER_BITS | number % (1 << PRODUCER_BITS)

    async def delete(self, name: str) -> None:
        """Delete a topic with its records and offsets; StreamNotFoundError."""
        stream = stream_of(name)
        await self._manager.seal_stream(self.scope, stream)
        await self._manager.delete_stream(self.scope, stream)
        self._close(name)
        await self._remove_records(name)

    async def _remove_records(self, name: str, besides: TopicProperties | None = None) -> None:
        """Remove what the table has about a deleted topic, or about those of the name before an existing one."""
        prefix, kept = _records_of(name).encode(), "" if besides is None else _rows_of(besides)
        rows = [prefix + entry.key async for entry in entries_of(self._stores, self.scope, self.table, prefix)]
        removed = [row for row in rows if besides is None or not row.startswith(kept.encode())]
        if besides is None:
            removed.append((_PLAIN + name).encode())
        await remove_keys(self._stores, self.table, removed)

    async def remove_orphans(self) -> None:
        """Remove what the table has about topics whose streams were deleted without a door."""
        known: dict[str, set[str]] = {}
        for prefix in (_OFFSETS, _PLAIN):
            async for entry in entries_of(self._stores, self.scope, self.table, prefix.encode()):
                name, *rest = entry.key.decode().split("/")
                known.setdefault(name, set()).update(rest[:1])
        existing = set(await self.names())
        for name, ids in known.items():
            if name not in existing:
                await self._remove_records(name)
            elif len(ids) > 1:
                await self._remove_records(name, besides=(await self.get(name)).properties)


SET, DELETE, APPEND, SUBTRACT = range(4)  # operations on properties


def edit_property(configured: dict[str, str], name: str, operation: int, value: str | None) -> None:
    """Change a property by one of Kafka's operations; KafkaError."""
    if operation in (APPEND, SUBTRACT):
        if name not in _LISTS:
            raise KafkaError(ErrorCode.invalid_config, f"{name} isn't a list: set or delete it")
        present = configured.get(name, DEFAULTS[name]).split(",")
        named = (value or "").split(",")
        kept = [item for item in present if item and item not in named]
        configured[name] = ",".join(kept if operation == SUBTRACT else dict.fromkeys([*present, *named]))
    elif operation == SET and value is not None:
        configured[name] = value
    else:
        configured.pop(name, None)


def check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= KAFKA_PARTITIONS:
        raise KafkaError(
            ErrorCode.invalid_partitions, f"a topic has 1 to {KAFKA_PARTITIONS:,} partitions, not {partitions}"
        )


def _records_of(name: str) -> str:
    return f"{_OFFSETS}{name}/"


def _rows_of(properties: TopicProperties) -> str:
    return f"{_records_of(properties.name)}{properties.topic_id.hex}/"


def _is_property(tag: str) -> bool:
    return tag.startswith(_TAG) and "=" in tag


def _retention_and_others(configured: Mapping[str, str]) -> tuple[RetentionPolicy | None, dict[str, str]]:
    """Split properties into the stream's retention and those that are only reported; KafkaError."""
    configured = {name: value for name, value in configured.items() if name not in _IGNORED}
    others = {name: value for name, value in configured.items() if name not in (RETENTION_MS, RETENTION_BYTES)}
    unknown = sorted(others.keys() - DEFAULTS.keys())
    if unknown:
        raise KafkaError(ErrorCode.invalid_config, f"unknown property {unknown[0]!r}: remove it")
    if (policy := others.get("cleanup.policy", "delete")) not in (
        "delete",
        "compact",
        "compact,delete",
        "delete,compact",
    ):
        raise KafkaError(ErrorCode.invalid_config, f"cleanup.policy can't be {policy!r}: use delete or compact")
    if others.get(_TIMESTAMP_TYPE, "CreateTime") not in ("CreateTime", _LOG_APPEND_TIME):
        raise KafkaError(ErrorCode.invalid_config, f"{_TIMESTAMP_TYPE} can be CreateTime or {_LOG_APPEND_TIME}")
    try:
        if not 0 <= int(others.get("max.message.bytes", KAFKA_BATCH_BYTES)) <= MAX_EVENT_BYTES:
            raise KafkaError(ErrorCode.invalid_config, f"max.message.bytes can be 0 to {MAX_EVENT_BYTES:,}")
        keep_ms, keep_bytes = int(configured.get(RETENTION_MS, -1)), int(configured.get(RETENTION_BYTES, -1))
        if "compact" in policy:  # everything is kept, and so are the properties
            return None, dict(configured)
        if keep_ms >= 0:
            return RetentionPolicy.by_time(max(keep_ms, 1)), others
        if keep_bytes >= 0:
            return RetentionPolicy.by_size(max(keep_bytes, 1)), others
    except (ValueError, InvalidArgumentError) as error:
        raise KafkaError(ErrorCode.invalid_config, f"a property isn't a number, or out of range: {error}") from None
    return None, others
