"""A container's state in memory: what checkpoints wrote, and what the log has said since."""

from __future__ import annotations

from collections.abc import Callable

from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.operations import AnyOperation, Append, decode_frame
from nadi.segmentstore.state.records import FrameRef
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES, FrameCheck
from nadi.segmentstore.tier1.log import DurableLog, Frame

Goes = Callable[[AnyOperation], bool]


def recovered(metadata: Metadata, log: DurableLog, now: float) -> StateMachine:
    """Replay the log over the state; blocking. Damaged data in the log is set aside.

    now: what was in the log counts as having come at that time, on the monotonic clock.

    Raises:
        CorruptLogError: the log doesn't match the state.
        DamagedStateError: the state is damaged.
    """
    state = StateMachine(metadata, now)
    for found in log.replay(state.sequence):
        apply_frame(state, FrameRef(found.address.sequence, found.address, now), found.payload, found)
    state.durable(state.record_cache.all())
    return state


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
