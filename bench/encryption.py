"""What encryption at rest costs: the same writes and reads of 1 KB events with and without it, in turns.

Reads are of history, by a server that has just started: nothing is in its memory, and all data is in tier 2.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

import nadi
from bench.measure import SCOPE, STREAM, Figure, fill, open_stream
from bench.process import settle
from nadi.config import ServerSecurity
from nadi.encryption.master_keys import new_key
from nadi.segmentstore.data_dir import TIER2

SIZE, COUNT, ROUNDS = 1_000, 400_000, 5
LEAST = 0.9  # of the throughput without encryption


def encryption(folder: Path, count: int = COUNT, rounds: int = ROUNDS) -> list[Figure]:
    (folder / "master.key").write_text(new_key())
    rates: dict[tuple[str, str], list[float]] = {}
    for number in range(2 * rounds):
        kind = "encrypted" if (number + number // 2) % 2 else "plain"  # each is first in every other round
        security = ServerSecurity(encryption_key=f"file:{folder / 'master.key'}" if kind == "encrypted" else None)
        for what, rate in _measured(folder / f"{number}", security, count).items():
            rates.setdefault((what, kind), []).append(rate)
    medians = {key: statistics.median(values) for key, values in rates.items()}
    figures = [Figure(f"{what}, {kind}", rate, "MB/s") for (what, kind), rate in sorted(medians.items())]
    for what in sorted({what for what, _ in medians}):
        part = medians[what, "encrypted"] / medians[what, "plain"]
        figures.append(Figure(f"{what}: encrypted, of plain", part, "times", LEAST))
    return figures


def _measured(folder: Path, security: ServerSecurity, count: int) -> dict[str, float]:
    """Return MB/s by what was done."""
    stored = SIZE * count / 1e6
    with nadi.embedded(folder, security=security) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        written_s = fill(manager, SIZE, count)
        settle(server.pid, folder / TIER2, sum(manager.stream_info(SCOPE, STREAM).tail.positions.values()))
    with nadi.embedded(folder, security=security) as server, nadi.StreamManager(server.controller_uri) as manager:
        end = manager.stream_info(SCOPE, STREAM).tail
        began, read = time.perf_counter(), 0
        with manager.create_reader(SCOPE, STREAM, end=end) as reader:
            for _, block in reader:
                read += block.size_bytes
        read_s = time.perf_counter() - began
        assert read == sum(end.positions.values()), "each byte once"
    shutil.rmtree(folder)
    return {"write 1 KB": stored / written_s, "read 1 KB": stored / read_s}
