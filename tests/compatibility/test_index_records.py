"""Records of index streams, byte for byte as the official Rust client writes them: `tests/golden/index_records.txt`.

A line: which of the program's writers, the values, the data, and the record without the zeros at its end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nadi.client.indexstream.record import Fields, decode

GOLDEN = Path(__file__).parents[1] / "golden" / "index_records.txt"
RECORDS = [line.split(" ") for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
NAMES = {"two": ("time", "offset"), "three": ("time", "offset", "pos"), "small": ("time", "offset")}
SIZES = {"two": 4096, "three": 4096, "small": 200}


@pytest.mark.parametrize("golden", RECORDS, ids=lambda golden: "-".join(golden[:3])[:40])
def test_a_record_is_the_official_one(golden: list[str]) -> None:
    kind, numbers, data, official = golden
    values, names = tuple(map(int, numbers.split(","))), NAMES[kind]
    record = bytes.fromhex(official).ljust(SIZES[kind], b"\0")
    assert Fields(names).encode(values, bytes.fromhex(data), SIZES[kind]) == record
    found = decode(record, 0)
    assert tuple(found.value(name) for name in names) == values
    assert found.data == bytes.fromhex(data)


def test_there_are_records_of_each_kind() -> None:
    assert {golden[0] for golden in RECORDS} == NAMES.keys()
