"""Events that nobody acknowledges: the error they fail with, and who looks for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping

from nadi.client.writing.segment_output import SegmentOutput
from nadi.errors import NadiError, RequestTimeoutError, StorageFullError

_LOOK_S = 1.0


async def fail_overdue(
    outputs: Mapping[int, SegmentOutput],
    lock: threading.Lock,
    ack_timeout_s: float,
    waits_for: Callable[[], NadiError | None],
) -> None:
    """Fail the events of outputs that have made no progress for the acknowledgement timeout; until cancelled."""
    while True:
        await asyncio.sleep(min(_LOOK_S, ack_timeout_s / 4))
        now = time.monotonic()
        for output in list(outputs.values()):
            with lock:
                if not output.has_pending:
                    output.progress_at = now
            if now - output.progress_at > ack_timeout_s:
                what = f"segment {output.segment} acknowledged nothing for {ack_timeout_s} s"
                if isinstance(output.trouble, StorageFullError):
                    output.fail(StorageFullError(f"{what}: {output.trouble}"))
                else:
                    output.fail(too_late(what, output.trouble or waits_for()))


def too_late(what: str, trouble: NadiError | None) -> RequestTimeoutError:
    return RequestTimeoutError(what + (f": {trouble}" if trouble else ""))
