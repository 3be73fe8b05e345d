"""Names of files and streams that the processes of a run share, and the time."""

from __future__ import annotations

import time

SCOPE, STREAM, GROUP = "elastic", "sales", "checkers"


def ms_now() -> int:
    return time.time_ns() // 1_000_000
