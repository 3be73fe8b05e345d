"""One reader of the group, in a separate process: notes each event it receives, until the stream has ended.

A note has the time at which the event's block was received, the time since it was written, its key and sequence. It is
made before the next block is requested, so the notes' times show which events another reader received only later.

With naps it stops every second for as long: it lags, which would reveal events that others read too early.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import nadi
from bench.elastic.event import headers
from bench.elastic.parts import GROUP, SCOPE
from bench.part import say_ready

NAP_S = 1.0
NOTES = np.dtype([("at_ns", "<i8"), ("wait_us", "<i8"), ("key", "<u4"), ("sequence", "<u4")])


def main(uri: str, name: str, file: Path, has_naps: bool) -> None:
    with (
        nadi.StreamManager(uri) as manager,
        file.open("wb", buffering=0) as notes,
        manager.reader_group_manager(SCOPE).get_reader_group(GROUP).create_reader(name) as reader,
    ):
        say_ready()
        nap_at = time.monotonic() + NAP_S
        while True:
            read = reader.read_next_block(1.0)
            if read is None:
                continue
            if read.is_read_completed:
                return
            if read.gap is not None:
                raise AssertionError(f"data is missing: {read.gap}")
            if read.block is None:
                continue
            at_ns = time.monotonic_ns()
            found = headers(read.block.payloads())
            new = np.empty(len(found), NOTES)
            new["at_ns"] = at_ns
            new["wait_us"] = (at_ns - found["written_ns"].astype(np.int64)) // 1000
            new["key"], new["sequence"] = found["key"], found["sequence"]
            notes.write(new.tobytes())
            if has_naps and time.monotonic() > nap_at:
                time.sleep(NAP_S)
                nap_at = time.monotonic() + NAP_S


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4] == "naps")
