"""Records of index streams match the official Rust client's byte for byte: `tests/golden/index_records.txt`.

Each line has the writer's kind, the values, the data, and the record without trailing zeros.
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
def test_record_matches_the_official_client(golden: list[str]) -> None:
    kind, numbers, data, official = golden
    values, names = tuple(map(int, numbers.split(","))), NAMES[kind]
    record = bytes.fromhex(official).ljust(SIZES[kind], b"\0")
    assert Fields(names).encode(values, bytes.fromhex(data), SIZES[kind]) == record
    decoded_record = decode(record, 0)
    assert tuple(decoded_record.value(name) for name in names) == values
    assert decoded_record.data == bytes.fromhex(data)


def test_golden_file_has_records_of_each_kind() -> None:
    assert {golden[0] for golden in RECORDS} == NAMES.keys()
