"""The janitor never removes objects that a walk reads or a state refers to, nor seals."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from nadi.cluster.admin import janitor as garbage
from nadi.segmentstore.chain.layout import HEADER_BYTES, ChainPosition, name_of
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery.snapshots import base_name, delta_name
from nadi.segmentstore.tier2.chunks import ListedObject
from nadi.segmentstore.tier2.records import ContainerRecord, SnapshotManifest, SnapshotPart

CONTAINER = 3
FRAME_BYTES = HEADER_BYTES + 1


@dataclass
class Chain:
    """Log written by several owners. frames: by sequence, in the chain. behind: frames behind seals. begun: first
    sequence of each epoch."""

    frames: dict[int, ChainPosition] = field(default_factory=dict)
    behind: list[ChainPosition] = field(default_factory=list)
    seals: list[ChainPosition] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)


epochs = st.lists(
    st.tuples(
        st.integers(1, 3),  # distance from the previous epoch
        st.booleans(),  # whether it joined the chain
        st.integers(0, 5),  # valid frames
        st.integers(0, 3),  # frames behind its seal
    ),
    min_size=1,
    max_size=8,
)


def chain_of(described: list[tuple[int, bool, int, int]]) -> Chain:
    chain, epoch, sequence = Chain(), 0, 0
    for step, is_entered, frames, behind in described:
        epoch += step
        number = 0
        if is_entered:
            chain.begun.append((epoch, sequence + 1))
            for _ in range(frames):
                number, sequence = number + 1, sequence + 1
                chain.frames[sequence] = ChainPosition(epoch, number)
        chain.seals.append(ChainPosition(epoch, number + 1))
        chain.behind += [ChainPosition(epoch, number + 2 + more) for more in range(behind)]
    return chain


def record_of(chain: Chain, sequence: int, held_from: int) -> ContainerRecord:
    """Return the record of an owner whose snapshot has everything up to that frame."""
    begun = [entry for entry in chain.begun if entry[1] <= sequence + 1]
    oldest = max(index for index, entry in enumerate(begun) if entry[1] <= held_from or index == 0)
    epoch, first = begun[-1]
    start = ChainStart(epoch, sequence - first + 2, sequence, tuple(begun[oldest:]), held_from)
    return ContainerRecord(epoch=epoch, owner="a", start=start)


@given(epochs, st.data())
def test_frames_removes_exactly_the_unreadable_ones(
    described: list[tuple[int, bool, int, int]], data: st.DataObject
) -> None:
    chain = chain_of(described)
    if not chain.begun:
        return
    sequence = data.draw(st.integers(0, len(chain.frames)))
    if chain.begun[0][1] > sequence + 1:
        return
    held_from = data.draw(st.integers(1, sequence + 1))
    record = record_of(chain, sequence, held_from)
    places = [*chain.frames.values(), *chain.behind]
    listed = [ListedObject(name_of(CONTAINER, position), FRAME_BYTES, 0) for position in places]
    listed += [ListedObject(name_of(CONTAINER, position), HEADER_BYTES, 0) for position in chain.seals]
    removed = set(garbage.frames(CONTAINER, record, listed))
    needed = {name_of(CONTAINER, position) for at, position in chain.frames.items() if at >= held_from}
    assert not removed & needed
    assert not removed & {name_of(CONTAINER, position) for position in chain.seals}
    # all known garbage is removed
    start = ChainPosition(record.start.epoch, record.start.number)
    past = {name_of(CONTAINER, position) for at, position in chain.frames.items() if at < held_from}
    behind = {name_of(CONTAINER, position) for position in chain.behind if position.epoch < start.epoch}
    assert past | behind == removed


def test_frames_keeps_unrecognised_names() -> None:
    chain = chain_of([(1, True, 5, 2), (1, True, 3, 0)])
    record = record_of(chain, 7, 7)
    strange = ["log/3/x/y", "log/3/1/1", name_of(4, ChainPosition(1, 1)), "log/3", "mark"]
    assert garbage.frames(CONTAINER, record, [ListedObject(name, FRAME_BYTES, 0) for name in strange]) == []


def test_frames_keeps_unclaimed_log() -> None:
    listed = [ListedObject(name_of(CONTAINER, ChainPosition(0, 1)), FRAME_BYTES, 0)]
    assert garbage.frames(CONTAINER, ContainerRecord(), listed) == []


UNIQUE = "0123456789abcdef" * 2
sequences = st.integers(0, 20)


@given(sequences, st.lists(sequences, max_size=4), st.lists(st.tuples(sequences, st.booleans()), max_size=20))
def test_snapshot_objects_keeps_current_and_future_objects(
    base: int, deltas: list[int], others: list[tuple[int, bool]]
) -> None:
    named = [SnapshotPart(f"{base_name(CONTAINER, base, UNIQUE)}-000000", 10, 0)]
    changes = [SnapshotPart(delta_name(CONTAINER, base + step, UNIQUE), 10, 0) for step in sorted(deltas)]
    sequence = base + max(deltas, default=0)
    record = ContainerRecord(snapshot=SnapshotManifest(CONTAINER, sequence, tuple(named), tuple(changes)))
    other = UNIQUE[::-1]
    names = [
        f"{base_name(CONTAINER, at, other)}-000001" if is_base else delta_name(CONTAINER, at, other)
        for at, is_base in others
    ]
    manifest = f"snapshots/container-{CONTAINER}/manifest-0000000000000001"
    listed = [ListedObject(name, 10, 0) for name in [*(one.name for one in (*named, *changes)), *names, manifest]]
    removed = garbage.snapshot_objects(CONTAINER, record, listed)
    assert removed == [name for name, (at, _) in zip(names, others, strict=True) if at < sequence]
    assert garbage.snapshot_objects(CONTAINER, ContainerRecord(), listed) == []
    assert garbage.snapshot_objects(CONTAINER + 1, record, listed) == []


def test_is_lost_chunk_requires_known_plan() -> None:
    record = ContainerRecord(snapshot=SnapshotManifest(CONTAINER, 100, (), ()))
    assert garbage.is_lost_chunk(record, {"b"}, "a", 100)
    assert not garbage.is_lost_chunk(record, {"b"}, "b", 100)
    assert not garbage.is_lost_chunk(record, {"b"}, "a", 101)  # a frame after the snapshot may refer to it
    assert not garbage.is_lost_chunk(record, {"b"}, "a", 0)
    assert not garbage.is_lost_chunk(ContainerRecord(), set(), "a", 1)
