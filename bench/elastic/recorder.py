"""The recorder, in a separate process: the stream's segments and their traffic, once a second."""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path

import nadi
from bench.elastic.parts import SCOPE, STREAM, ms_now
from bench.part import say_ready


def main(uri: str, file: Path) -> None:
    with nadi.StreamManager(uri) as manager, file.open("w", buffering=1) as samples:
        say_ready()
        due = time.monotonic()
        while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            due = max(due + 1, time.monotonic())
            at_ms = ms_now()
            loads = manager.segment_loads(SCOPE, STREAM)
            rates = {str(load.segment_id): round(load.events_per_s[0], 1) for load in loads}  # over 2 s
            hot = [load.segment_id for load in loads if load.hot_key is not None]
            samples.write(json.dumps({"at_ms": at_ms, "rates": rates, "hot": hot}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
