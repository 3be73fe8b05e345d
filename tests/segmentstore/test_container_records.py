"""The two records of a container in a data folder."""

from __future__ import annotations

from nadi.runtime import REAL
from nadi.segmentstore.tier2.records import COPY, ContainerRecord, ContainerRecords, SnapshotManifest, name_of
from tests.support.memory_registry import MemoryRecords, MemoryRegistry


def record(sequence: int) -> ContainerRecord:
    return ContainerRecord(epoch=1, snapshot=SnapshotManifest(0, sequence, (), ()))


async def test_a_kill_explains_only_an_older_copy() -> None:
    registry = MemoryRegistry(MemoryRecords())
    records = ContainerRecords(registry, REAL, is_alone=True)
    await records.put(0, record(5))
    assert await records.unequal(0) == ""
    old = await registry.get(name_of(0) + COPY)
    assert old is not None
    await records.put(0, record(6))
    await registry.put(name_of(0) + COPY, old.value)
    assert await records.unequal(0)
    assert await records.was_interrupted(0)
    assert (await records.read(0)).record == record(6)
    await registry.put(name_of(0) + COPY, old.value[:-3] + b"0\n")
    assert not await records.was_interrupted(0)
    await records.put(0, record(6))
    await registry.put(name_of(0), old.value)
    assert await records.unequal(0)
    assert not await records.was_interrupted(0)
