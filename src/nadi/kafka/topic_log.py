"""A topic's segments as partitions: where each begins and ends, and what follows what.

Each partition has one position of the key space. Its records are in the segments that take this position, one after
the other: splits and merges only add links to this chain. Positions don't depend on the number of partitions, so
partitions can be added. They avoid the usual borders of segments, which belong to the lower segment for writers.

>>> [round(position_of(partition), 5) for partition in range(5)]
[0.5, 0.25, 0.75, 0.125, 0.625]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from nadi.backoff import Backoff
from nadi.client.tables.table import ABSENT, TableValue
from nadi.errors import ConditionFailedError, EpochExpiredError, NotFoundError, SegmentNotFoundError
from nadi.kafka.batches import NO_TIME
from nadi.kafka.segment_log import LogStorage, PlacedBatch, SegmentLog, unused_offsets
from nadi.limits import KAFKA_HEAD_CACHED_S, KAFKA_PARTITIONS
from nadi.model.segments import SegmentRange, has_key, takes
from nadi.naming import segment_epoch

_BESIDE_BORDERS = 1 / (3 << 20)


def position_of(partition: int) -> float:
    """Return the position of a partition in the key space: the van der Corput sequence, moved a little."""
    number, position, step = partition + 1, _BESIDE_BORDERS, 0.5
    while number:
        position += step * (number & 1)
        number, step = number >> 1, step / 2
    return position


def enough_partitions(segments: Sequence[SegmentRange], least: int) -> int:
    """Return the number of partitions, `least` or more, with which each segment takes one."""
    narrowest = min(segment.high - segment.low for segment in segments)
    count = least
    while count < KAFKA_PARTITIONS and not _each_takes_one(segments, count):
        count += 1 if count * narrowest > 1 else count
    return min(count, KAFKA_PARTITIONS)


def _each_takes_one(segments: Sequence[SegmentRange], count: int) -> bool:
    positions = sorted(position_of(partition) for partition in range(count))
    return all(has_key(positions, segment.low, segment.high) for segment in segments)


class TopicLog:
    """The logs of a stream's segments, opened when they are needed."""

    def __init__(self, storage: LogStorage, partitions: int) -> None:
        self._storage = storage
        self.positions = [position_of(partition) for partition in range(partitions)]
        self._logs: dict[int, SegmentLog] = {}
        self._opening: dict[int, asyncio.Task[SegmentLog]] = {}
        self._chains: dict[int, list[SegmentLog]] = {}
        self._epochs: dict[int, list[SegmentRange]] = {}
        self._head: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._starts_key = f"{storage.prefix}starts".encode()
        self._head_at = -KAFKA_HEAD_CACHED_S

    # --- ends ---------------------------------------------------------------------------------

    async def start_offset(self, partition: int) -> int:
        """Return the offset of the partition's first record that is still stored and wasn't deleted by a client."""
        log = (await self._chain(partition))[0]
        position = self._head.get(log.segment.segment_id, 0)
        await log.begin_at(position)
        return max(await log.offset_at(partition, position), self._starts.get(partition, 0))

    async def raise_starts(self, offsets: Mapping[int, int]) -> None:
        """Let these partitions begin at these offsets, or where they already begin if that is higher."""
        table = self._storage.table
        while True:
            stored = await table.get(self._starts_key)
            starts = _starts_in(stored)
            starts |= {partition: max(offset, starts.get(partition, 0)) for partition, offset in offsets.items()}
            with suppress(ConditionFailedError):
                version = ABSENT if stored is None else stored.version
                await table.put(self._starts_key, msgspec.msgpack.encode(starts), version)
                self._starts = starts
                return

    async def start_cut(self) -> dict[int, int] | None:
        """Return the positions of a stream cut where all partitions have begun, with the offsets there stored; None if
        the stream begins there."""
        starts = {partition: await self.start_offset(partition) for partition in range(len(self.positions))}
        positions = await self.cut_at(starts)
        if positions == self._head:
            return None
        for segment, position in positions.items():
            await self._logs[segment].record_at(position)
        return positions

    async def end_offset(self, partition: int) -> int:
        """Return the offset behind the partition's last record."""
        return (await self.tail(partition)).end_offset(partition)

    async def known_end(self, partition: int) -> int:
        """Return the offset behind the partition's last record that was counted; another door may have written more."""
        return (await self._chain(partition))[-1].end_offset(partition)

    async def tail(self, partition: int) -> SegmentLog:
        """Return the log that takes the partition's records, counted to its current end."""
        while True:
            log = (await self._chain(partition))[-1]
            await log.refresh()
            if not log.is_complete or not await self._extend(partition):
                return log

    # --- reading ------------------------------------------------------------------------------

    async def batches_from(self, partition: int, offset: int) -> list[PlacedBatch]:
        """Return some of the partition's counted batches that end after `offset`."""
        while True:
            chain = await self._chain(partition)
            log = next((log for log in chain if offset < log.end_offset(partition)), None)
            if log is not None:
                return await log.batches_from(partition, offset)
            if not chain[-1].is_complete or not await self._extend(partition):
                return []

    async def batches_since(self, partition: int, time_ms: int) -> list[PlacedBatch]:
        """Return some batches of the partition, from the first one with a timestamp of `time_ms` or later."""
        await self.tail(partition)
        for log in await self._chain(partition):
            if found := await log.batches_since(partition, time_ms):
                return found
        return []

    async def cut_at(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return a stream cut's positions before which no record at or behind these offsets is.

        A segment's position is that of its first such record, so records of its other partitions before their offsets
        may follow. offsets: by partition; the others count from their ends.
        """
        found: dict[int, list[int]] = {}
        epochs = set()
        for partition in range(len(self.positions)):
            log = await self.tail(partition)
            offset = offsets.get(partition, log.end_offset(partition))
            chain = await self._chain(partition)
            log = next((log for log in chain if offset < log.end_offset(partition)), chain[-1])
            position = max(await log.position_of(partition, offset), self._head.get(log.segment.segment_id, 0))
            found.setdefault(log.segment.segment_id, []).append(position)
            epochs.add(segment_epoch(log.segment.segment_id))
        positions = {}
        for segment in await self._segments_at(min(epochs)):
            if segment.segment_id in found:
                positions[segment.segment_id] = min(found[segment.segment_id])
            else:  # all its records are before the offsets, or it takes no partition
                log = await self.log(segment)
                await log.refresh()
                positions[segment.segment_id] = log.position
        return positions

    async def offsets_at(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Return the offset of each partition's first record at or behind a stream cut."""
        offsets = {}
        for partition, key in enumerate(self.positions):
            await self.tail(partition)
            chain = await self._chain(partition)
            log = next((log for log in chain if log.segment.segment_id in positions), None)
            if log is None:
                raise NotFoundError(f"no segment of the cut takes partition {partition}, at {key}")
            position = max(positions[log.segment.segment_id], 0)
            offsets[partition] = max(await log.offset_at(partition, position), self._starts.get(partition, 0))
        return offsets

    async def _segments_at(self, epoch: int) -> list[SegmentRange]:
        """Return the segments of an epoch, or those of the stream's head if it is older."""
        first = max(map(segment_epoch, self._head))
        return await self.epoch(max(epoch, first))

    async def waiting_log(self, partition: int) -> SegmentLog:
        """Return the log where the partition's next records are expected."""
        while True:
            log = (await self._chain(partition))[-1]
            if not log.is_complete or not await self._extend(partition):
                return log

    def forget_head(self) -> None:
        """Read where the stream begins before it is used next."""
        self._head_at = -KAFKA_HEAD_CACHED_S

    def close(self) -> None:
        for task in self._opening.values():
            task.cancel()
        for log in self._logs.values():
            log.close()

    # --- chains -------------------------------------------------------------------------------

    async def _chain(self, partition: int) -> list[SegmentLog]:
        """Return the partition's logs from the stream's head to the last one that is known."""
        if time.monotonic() - self._head_at >= KAFKA_HEAD_CACHED_S:
            await self._read_head()
        chain = self._chains.get(partition)
        if chain is None:
            position = self.positions[partition]
            epochs = sorted({segment_epoch(segment) for segment in self._head})
            for epoch in epochs:
                for segment in await self.epoch(epoch):
                    if segment.segment_id in self._head and takes(segment, position):
                        return self._chains.setdefault(partition, [await self.log(segment)])
            raise NotFoundError(f"no segment of {self._storage.scope}/{self._storage.stream} takes {position}")
        return chain

    async def _read_head(self) -> None:
        head = await self._storage.stores.controller.head(self._storage.scope, self._storage.stream)
        self._starts = _starts_in(await self._storage.table.get(self._starts_key))
        self._head_at = time.monotonic()
        if set(head.positions) != set(self._head):
            first = min(map(segment_epoch, head.positions))
            for segment in [segment for segment in self._logs if segment_epoch(segment) < first]:
                if segment not in head.positions and self._logs[segment].is_complete:
                    self._logs.pop(segment).close()
            self._chains.clear()
        self._head = dict(head.positions)

    async def _extend(self, partition: int) -> bool:
        """Append the successor of a chain's last segment; return False if the stream is sealed."""
        chain = await self._chain(partition)
        last = chain[-1]
        position = self.positions[partition]
        successors = await self._storage.stores.controller.successors(
            self._storage.scope, self._storage.stream, last.segment.segment_id
        )
        segment = next((each.segment for each in successors if takes(each.segment, position)), None)
        if segment is None:
            return False
        log = await self.log(segment)
        chain = await self._chain(partition)
        if chain[-1] is last:
            chain.append(log)
        return True

    async def log(self, segment: SegmentRange) -> SegmentLog:
        """Return a segment's log, with its counts from the table or from its predecessors."""
        log = self._logs.get(segment.segment_id)
        if log is not None:
            return log
        task = self._opening.get(segment.segment_id)
        if task is None:
            task = asyncio.create_task(self._open(segment), name=f"open segment {segment.segment_id}")
            self._opening[segment.segment_id] = task
            task.add_done_callback(lambda _: self._opening.pop(segment.segment_id, None))
        return await asyncio.shield(task)

    async def _open(self, segment: SegmentRange) -> SegmentLog:
        partitions = [number for number, position in enumerate(self.positions) if takes(segment, position)]
        log = SegmentLog(self._storage, segment, partitions)
        if not await log.load():
            states = await self._states_before(segment, partitions)
            await log.begin([offset for offset, _ in states], [latest for _, latest in states])
        self._logs[segment.segment_id] = log
        return log

    async def _states_before(self, segment: SegmentRange, partitions: Sequence[int]) -> list[tuple[int, int]]:
        """Return offset and latest timestamp of each partition at the ends of the segment's predecessors; unused
        offsets if these are truncated."""
        epoch = segment_epoch(segment.segment_id)
        older = await self.epoch(epoch - 1) if epoch else []
        states: dict[int, tuple[int, int]] = {}
        for partition in partitions if epoch else ():
            with suppress(SegmentNotFoundError):  # truncated before it was counted to its end
                for piece in (piece for piece in older if takes(piece, self.positions[partition])):
                    log = await self.log(piece)
                    await _complete(log)
                    states[partition] = log.state(partition)
        if epoch and len(states) < len(partitions):
            unused = await unused_offsets(self._storage, partitions)
            states = {each: (offset, NO_TIME) for each, offset in zip(partitions, unused, strict=True)} | states
        return [states.get(partition, (0, NO_TIME)) for partition in partitions]

    async def epoch(self, epoch: int) -> list[SegmentRange]:
        """Return the segments of an epoch; none if it is forgotten."""
        segments = self._epochs.get(epoch)
        if segments is None:
            try:
                segments = await self._storage.stores.controller.epoch_segments(
                    self._storage.scope, self._storage.stream, epoch
                )
            except EpochExpiredError:
                segments = []
            self._epochs[epoch] = segments
        return segments


def _starts_in(stored: TableValue | None) -> dict[int, int]:
    """Return the offsets in the record of where partitions begin."""
    return {} if stored is None else msgspec.msgpack.decode(stored.value, type=dict[int, int])


async def _complete(log: SegmentLog) -> None:
    """Count a segment that has successors to its end, after waiting until it is sealed."""
    backoff = Backoff()
    while not log.is_complete:
        await log.refresh()
        if not log.is_complete:
            await backoff.pause()
