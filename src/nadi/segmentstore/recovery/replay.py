"""A container's state in memory: what checkpoints wrote, and what the log has said since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nadi.limits import MIB
from nadi.runtime import Runtime
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.operations import AnyOperation, Append, decode_frame
from nadi.segmentstore.state.records import FrameRef
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES, FrameCheck
from nadi.segmentstore.tier1.log import DurableLog, Frame

Goes = Callable[[AnyOperation], bool]


_BATCH_BYTES = MIB
_BATCH_FRAMES = 1_000


async def recovered(metadata: Metadata, log: DurableLog, runtime: Runtime) -> StateMachine:
    """Replay the log over the state. Damaged data in the log is set aside.

    What was in the log counts as having come now. Frames are applied in a thread, many at a time.

    Raises:
        CorruptLogError: the log doesn't match the state.
        DamagedStateError: the state is damaged.
        FencedError, UnavailableError, OSError: as `DurableLog.replay`.
    """
    now = runtime.monotonic()
    state = await runtime.in_thread(StateMachine, metadata, now)
    batch: list[Frame] = []
    size_bytes = 0
    async for frame in log.replay(state.sequence):
        batch.append(frame)
        size_bytes += len(frame.payload)
        if size_bytes >= _BATCH_BYTES or len(batch) == _BATCH_FRAMES:
            await runtime.in_thread(_apply, state, batch, now)
            batch, size_bytes = [], 0
    await runtime.in_thread(_apply_last, state, batch, now)
    return state


def recovered_of(metadata: Metadata, replay: Callable[[int], Iterator[Frame]], now: float) -> StateMachine:
    """`recovered` for a stopped folder, whose log isn't a `DurableLog`; blocking."""
    state = StateMachine(metadata, now)
    _apply_last(state, replay(state.sequence), now)
    return state


def _apply(state: StateMachine, frames: Iterable[Frame], now: float) -> None:
    for frame in frames:
        apply_frame(state, FrameRef(frame.address.sequence, frame.address, now), frame.payload, frame)


def _apply_last(state: StateMachine, frames: Iterable[Frame], now: float) -> None:
    _apply(state, frames, now)
    state.durable(state.record_cache.all())


def apply_frame(
    state: StateMachine, frame: FrameRef, payload: bytes, check: Frame | FrameCheck, goes: Goes = lambda operation: True
) -> None:
    """Apply the operations that go of a frame that was read, at least its head; set aside what is damaged."""
    operations, data_at = decode_frame(payload)
    part = 0
    for operation in operations:
        data = operation if isinstance(operation, Append) and operation.logged_bytes else None
        checksum = check.checksums[part * CHECKSUM_BYTES :][:CHECKSUM_BYTES] if data is not None else b""
        if goes(operation):
            state.apply(operation, frame, data_at, checksum)
            if data is not None and part in check.damaged_parts:
                state.set_aside(state.must(data.segment).extents[-1])
        part += data is not None
    if frame.live_bytes:
        state.frames[frame.sequence] = frame
    state.sequence = frame.sequence
