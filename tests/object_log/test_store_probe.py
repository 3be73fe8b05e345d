"""A server's proof of its store: suitable stores pass, and each fault of other stores is reported."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nadi.errors import StoreError, UnavailableError
from nadi.object_log import outcomes
from nadi.object_log.opening import open_engines
from nadi.object_log.store_probe import prove
from nadi.runtime import REAL
from tests.support.engines import PARAMS, kind_named, late_writes
from tests.support.fake_s3 import FakeS3


@pytest.fixture
async def s3() -> AsyncIterator[FakeS3]:
    async with FakeS3() as server:
        yield server


async def run_proof(s3: FakeS3, bucket: str = "bucket") -> None:
    await prove(*await open_engines(f"s3://{bucket}/p", REAL, **s3.config()), REAL)


async def unusable(s3: FakeS3, bucket: str = "bucket") -> str:
    with pytest.raises(StoreError) as caught:
        await run_proof(s3, bucket)
    return str(caught.value)


@pytest.mark.parametrize("kind", PARAMS)
async def test_suitable_store_passes_and_is_left_unchanged(kind: str, tmp_path: Path) -> None:
    async with kind_named(kind)(tmp_path) as opener:
        engine, registry = await opener()
        await asyncio.gather(*(prove(engine, registry, REAL) for _ in range(3)))
        await late_writes()
        if kind != "s3 with faults":  # there, a write may take effect after its deletion
            await REAL.sleep(0.25)
            assert [page async for page in engine.listed("") if page] == []


async def test_proof_takes_few_requests(s3: FakeS3) -> None:
    await run_proof(s3)
    assert sum(s3.counts.values()) < 120
    assert s3.objects.now == {}


async def test_store_that_ignores_conditions_is_rejected(s3: FakeS3) -> None:
    s3.faults.ignored = ["create"]
    assert "8 of 8 creations" in await unusable(s3)
    assert s3.objects.now == {}
    s3.faults.ignored = ["match"]
    assert "8 of 8 conditional writes" in await unusable(s3)
    assert s3.objects.now == {}


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"kept_times": 8}, "condition that none exists"),
        ({"kept_times": 10}, "condition on an older version"),
        ({"etags_wrong": True}, "contradicted each other"),
        ({"stale_gets_s": 30}, "isn't found right after"),
        ({"lists_late_s": 30}, "can't list proof/"),
        ({"locked": True}, "object lock"),
        ({"expired": True}, "credentials have expired"),
        ({"denied": ["put"]}, "can't store proof/.*permission denied"),
        ({"denied": ["get"]}, "can't read proof/.*permission denied"),
        ({"denied": ["list"]}, "can't list proof/.*permission denied"),
        ({"denied": ["delete"]}, "permission denied.*remain in proof/"),
    ],
    ids=str,
)
async def test_faulty_store_is_rejected(
    s3: FakeS3, faults: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "PATIENCE_S", 0.3)
    s3.faults.update(**faults)
    assert re.search(message, await unusable(s3))


async def test_missing_bucket_is_reported_soon(s3: FakeS3) -> None:
    assert "bucket" in await unusable(s3, "another")


async def test_versioned_bucket_logs_a_warning(s3: FakeS3, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await run_proof(s3)
        assert caplog.text == ""
        s3.faults.versioned = True
        await run_proof(s3)
    assert "old versions" in caplog.text


async def test_busy_store_is_retried_until_the_time_limit(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.faults.slow_down = 1.0
    proof = asyncio.ensure_future(run_proof(s3))
    await asyncio.sleep(0.3)
    s3.faults.slow_down = 0.0
    await proof
    monkeypatch.setattr(outcomes, "PATIENCE_S", 0.3)
    s3.faults.slow_down = 1.0
    with pytest.raises(UnavailableError):
        await run_proof(s3)
