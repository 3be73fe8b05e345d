"""Index records as the official Rust client wrote them, from `tests/golden/index_records.txt`.

A line: which of the program's writers, the values, the data, and the record without the zeros at its end.
"""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "index_records.txt"
NAMES = {"two": ("time", "offset"), "three": ("time", "offset", "pos"), "small": ("time", "offset")}
SIZES = {"two": 4096, "three": 4096, "small": 200}
Golden = tuple[str, tuple[int, ...], bytes, str]


def _record(line: str) -> Golden:
    kind, values, data, record = line.split(" ")
    return kind, tuple(map(int, values.split(","))), bytes.fromhex(data), record


RECORDS = [_record(line) for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
