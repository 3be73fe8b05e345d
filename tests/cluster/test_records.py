"""The containers' records: changed once whatever gets no answer, and each damaged for itself."""

from __future__ import annotations

import pytest

from nadi.cluster.map import RecordWatch
from nadi.errors import FencedError, StoreError
from nadi.runtime import REAL
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.tier2.records import Records, name_of
from tests.support.memory_registry import Faults, MemoryRecords, MemoryRegistry


@pytest.mark.parametrize("seed", range(20))
async def test_a_claim_without_an_answer_is_known_to_be_ones_own(seed: int) -> None:
    stored = MemoryRecords()
    records = Records(MemoryRegistry(stored, Faults(unanswered=0.25, lost=0.1), seed=seed), REAL)
    claimed = await records.claim(0, "me", await Records(MemoryRegistry(stored), REAL).read(0))
    assert (claimed.record.epoch, claimed.record.owner) == (1, "me")
    assert await Records(MemoryRegistry(stored), REAL).read(0) == claimed


async def test_a_record_that_is_another_by_now_cannot_be_claimed_nor_changed() -> None:
    records = Records(MemoryRegistry(MemoryRecords()), REAL)
    seen = await records.read(0)
    await records.claim(0, "a", seen)
    with pytest.raises(FencedError):
        await records.claim(0, "b", seen)
    await records.claim(0, "b", await records.read(0))
    with pytest.raises(FencedError):
        await records.set_snapshot(0, 1, None, ChainStart())
    with pytest.raises(FencedError):
        await records.still_claimed(0, 1)


async def test_a_digit_that_is_another_is_noticed() -> None:
    """Of all bytes of a record: none can be taken for another place in the log, owner or snapshot."""
    stored = MemoryRecords()
    records = Records(MemoryRegistry(stored), REAL)
    claimed = await records.claim(0, "a", await records.read(0))
    whole = stored.values[name_of(0)].value
    for place in range(len(whole)):
        stored.set(name_of(0), b"%b%c%b" % (whole[:place], whole[place] ^ 1, whole[place + 1 :]))
        with pytest.raises(StoreError, match="containers/0 in the store is damaged"):
            await records.read(0)
    stored.set(name_of(0), whole)
    assert (await records.read(0)).record == claimed.record


@pytest.mark.parametrize("damaged", [b"", b"{", b"\xff\xff\xff\xff"])
async def test_one_that_is_damaged_stops_no_other(damaged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A look at all of them used to fail for one."""
    stored = MemoryRecords()
    registry = MemoryRegistry(stored)
    records = Records(registry, REAL)
    await records.claim(0, "a", await records.read(0))
    stored.set(name_of(1), damaged)
    watch = RecordWatch(registry, records, 3, REAL)
    await watch.look()
    assert watch.owner(0) == "a"
    assert sorted(watch.seen) == [0, 2], "nobody decides anything about the damaged one"
    assert "containers/1" in caplog.text
    with pytest.raises(StoreError, match="containers/1"):
        await records.read(1)
