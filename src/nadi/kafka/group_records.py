"""Consumer groups and their committed offsets, as rows of the scope's table."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from uuid import UUID

import msgspec

from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.catalog import entries_of, remove_all, remove_keys
from nadi.client.tables.table import ABSENT, ANY_VERSION, Table
from nadi.errors import ConditionFailedError, NotFoundError
from nadi.kafka.messages import ErrorCode, KafkaError
from nadi.kafka.topics import Topics, stream_of
from nadi.limits import KAFKA_METADATA_BYTES, KAFKA_UNUSED_GROUP_S, METRICS_GROUPS_MEASURED
from nadi.model.reports import GroupLagReport
from nadi.wire import commands as wire
from nadi.wire.fields import WireTableEntry

NO_OFFSET = -1
_GROUPS, _COMMITS = b"group/", b"commit/"


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True):
    """A group's offset of a partition, as its consumer committed it. A later topic of the name has another topic_id."""

    offset: int
    leader_epoch: int
    metadata: str | None
    committed_ms: int
    topic_id: UUID


class StoredMember(msgspec.Struct, frozen=True, array_like=True):
    """A member of a group. assignment: as the leader encoded it; empty until then."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes

    def size_bytes(self) -> int:
        """Return the size without the assignment."""
        return len(msgspec.msgpack.encode(msgspec.structs.replace(self, assignment=b"")))


class StoredGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group's record. protocol: of assigning partitions; leader: the member that assigns them."""

    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[StoredMember, ...] = ()


Offsets = Mapping[tuple[str, int], CommittedOffset]  # by topic and partition


class GroupRecords:
    """The groups of a scope and their committed offsets."""

    def __init__(self, stores: SegmentStores, scope: str, table: Table) -> None:
        self._stores, self._scope, self._table = stores, scope, table

    async def read(self, name: str) -> tuple[StoredGroup | None, int]:
        """Return a group and its version; None and ABSENT if it is missing."""
        entry = await self._table.get(_GROUPS + name.encode())
        if entry is None:
            return None, ABSENT
        return msgspec.msgpack.decode(entry.value, type=StoredGroup), entry.version

    async def write(self, name: str, version: int, group: StoredGroup, offsets: Offsets) -> int:
        """Store a group and offsets in one step; return the new version. ConditionFailedError: the group has changed.
        KafkaError: an offset's metadata is too large."""
        entries = [WireTableEntry(_GROUPS + name.encode(), version, msgspec.msgpack.encode(group))]
        for (topic, partition), committed in offsets.items():
            if len((committed.metadata or "").encode()) > KAFKA_METADATA_BYTES:
                raise KafkaError(ErrorCode.offset_metadata_too_large)
            value = msgspec.msgpack.encode(committed)
            entries.append(WireTableEntry(commit_key(name, topic, partition), ANY_VERSION, value))
        update = wire.UpdateTableEntries(0, self._table.segment, "", tuple(entries))
        return (await self._stores.ask(update, wire.TableEntriesUpdated, repeat=False)).versions[0]

    async def all(self) -> AsyncIterator[tuple[str, StoredGroup]]:
        """Yield the name and the record of each group."""
        async for entry in entries_of(self._stores, self._scope, self._table, _GROUPS):
            yield entry.key.decode(errors="replace"), msgspec.msgpack.decode(entry.value, type=StoredGroup)

    async def committed(self, name: str) -> dict[tuple[str, int], CommittedOffset]:
        """Return all committed offsets of a group."""
        offsets = {}
        async for entry in entries_of(self._stores, self._scope, self._table, _commits_of(name)):
            topic, _, partition = entry.key.decode().rpartition("\0")
            offsets[topic, int(partition)] = msgspec.msgpack.decode(entry.value, type=CommittedOffset)
        return offsets

    async def lags(self, topics: Topics, most: int = METRICS_GROUPS_MEASURED) -> list[GroupLagReport]:
        """Return the lags of up to `most` groups: of each in each topic with committed offsets.

        A lag is the number of records behind the offsets, as Kafka's tools count it: `lag_events`.
        """
        reports: list[GroupLagReport] = []
        ends: dict[str, dict[int, int]] = {}
        groups = 0
        async for name, group in self.all():
            if (groups := groups + 1) > most:
                break
            records: dict[str, int] = {}
            for (topic, partition), committed in (await self.committed(name)).items():
                if topic not in ends:
                    ends[topic] = await _ends(topics, topic)
                if partition in ends[topic]:
                    lag = max(ends[topic][partition] - committed.offset, 0)
                    records[topic] = records.get(topic, 0) + lag
            for topic, lag in records.items():
                stream = f"{self._scope}/{stream_of(topic)}"
                known = None, lag, None, len(group.members), None, None
                reports.append(GroupLagReport(self._scope, name, stream, *known, "kafka", None, None, ""))
        return reports

    async def delete_offsets(self, name: str, partitions: Iterable[tuple[str, int]]) -> None:
        await remove_keys(self._stores, self._table, [commit_key(name, *partition) for partition in partitions])

    async def remove_orphans(self, topics: Callable[[], Awaitable[list[str]]]) -> None:
        """Remove the offsets of deleted topics. topics: returns the present ones."""
        entries = entries_of(self._stores, self._scope, self._table, _COMMITS)
        stored = [(entry.key, entry.version) async for entry in entries]
        existing = set(await topics())
        for key, version in stored:
            if key.decode().rsplit("\0", 2)[1] not in existing:
                with suppress(ConditionFailedError):  # the topic was created again
                    await self._table.remove(_COMMITS + key, version)

    async def unused(self) -> list[str]:
        """Return the groups whose last commit is long ago, or that have none."""
        since_ms = time.time() * 1000 - KAFKA_UNUSED_GROUP_S * 1000
        names = [name async for name, _ in self.all()]
        return [
            name
            for name in names
            if all(offset.committed_ms < since_ms for offset in (await self.committed(name)).values())
        ]

    async def delete(self, name: str) -> None:
        """Delete a group and its offsets."""
        await remove_all(self._stores, self._scope, self._table, _commits_of(name))
        await self._table.remove(_GROUPS + name.encode())


def _commits_of(group: str) -> bytes:
    return _COMMITS + group.encode() + b"\0"


def commit_key(group: str, topic: str, partition: int) -> bytes:
    """Return the key of a committed offset."""
    return _commits_of(group) + f"{topic}\0{partition}".encode()


async def _ends(topics: Topics, name: str) -> dict[int, int]:
    """Return the offset behind the last record of each partition; none if the topic was deleted."""
    try:
        topic = await topics.get(name)
        return {partition: await topic.log.end_offset(partition) for partition in range(topic.properties.partitions)}
    except NotFoundError:
        return {}
