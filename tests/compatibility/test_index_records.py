"""Records of index streams, byte for byte as the official Rust client writes them."""

from __future__ import annotations

import pytest

from nadi.client.indexstream.record import Fields, decode
from tests.compatibility.golden_records import NAMES, RECORDS, SIZES, Golden


@pytest.mark.parametrize("golden", RECORDS, ids=lambda golden: f"{golden[0]}-{golden[1]}-{len(golden[2])}")
def test_a_record_is_the_official_one(golden: Golden) -> None:
    kind, values, data, official = golden
    size, names = SIZES[kind], NAMES[kind]
    record = bytes.fromhex(official).ljust(size, b"\0")
    assert Fields(names).encode(values, data, size) == record
    found = decode(record, 0)
    assert tuple(found.value(name) for name in names) == values
    assert found.data == data


def test_there_are_records_of_each_kind() -> None:
    assert {golden[0] for golden in RECORDS} == NAMES.keys()
