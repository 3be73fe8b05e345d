"""A server's proof of its store: those that can be used pass, and each fault of the others is told."""

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


async def proved(s3: FakeS3, bucket: str = "bucket") -> None:
    await prove(*await open_engines(f"s3://{bucket}/p", REAL, **s3.config()), REAL)


async def unusable(s3: FakeS3, bucket: str = "bucket") -> str:
    with pytest.raises(StoreError) as caught:
        await proved(s3, bucket)
    return str(caught.value)


@pytest.mark.parametrize("kind", PARAMS)
async def test_a_store_that_keeps_its_conditions_passes_and_is_left_as_it_was(kind: str, tmp_path: Path) -> None:
    async with kind_named(kind)(tmp_path) as opener:
        engine, registry = await opener()
        await asyncio.gather(*(prove(engine, registry, REAL) for _ in range(3)))
        await late_writes()
        if kind != "s3 with faults":  # there, a write may come after its deletion
            await REAL.sleep(0.25)
            assert [page async for page in engine.listed("") if page] == []


async def test_one_without_faults_takes_few_requests(s3: FakeS3) -> None:
    await proved(s3)
    assert sum(s3.counts.values()) < 120
    assert s3.objects.now == {}


async def test_one_that_ignores_conditions_is_refused(s3: FakeS3) -> None:
    s3.faults.ignored = ["create"]
    assert "of 8 that stored one object if it isn't there, 8 were told they had" in await unusable(s3)
    assert s3.objects.now == {}
    s3.faults.ignored = ["match"]
    text = await unusable(s3)
    assert "of 8 that replaced one version of a value, 8 were told they had" in text
    assert "use another store" in text
    assert s3.objects.now == {}


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"kept_times": 8}, "it replaced an object that was to be stored only if it isn't there"),
        ({"kept_times": 10}, "on the condition of a version that it no longer had"),
        ({"etags_wrong": True}, "its answers have contradicted each other"),
        ({"stale_gets_s": 30}, "isn't found right afterwards"),
        ({"lists_late_s": 30}, "can't list proof/"),
        ({"locked": True}, "object lock"),
        ({"expired": True}, "its credentials have expired"),
        ({"denied": ["put"]}, "can't store proof/.*give the server's account the permission"),
        ({"denied": ["get"]}, "can't read proof/.*give the server's account the permission"),
        ({"denied": ["list"]}, "can't list proof/.*give the server's account the permission"),
        ({"denied": ["delete"]}, "give the server's account the permission.*stored to try is left in proof/"),
    ],
    ids=str,
)
async def test_one_that_is_wrong_is_refused(
    s3: FakeS3, faults: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "PATIENCE_S", 0.3)
    s3.faults.update(**faults)
    assert re.search(said, await unusable(s3))


async def test_a_bucket_that_is_not_there_is_told_soon(s3: FakeS3) -> None:
    assert "there is no such bucket; create it" in await unusable(s3, "another")


async def test_old_versions_that_are_kept_are_warned_of(s3: FakeS3, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await proved(s3)
        assert caplog.text == ""
        s3.faults.versioned = True
        await proved(s3)
    assert "the bucket keeps old versions" in caplog.text


async def test_one_that_is_busy_is_waited_for_and_one_that_is_gone_not_forever(
    s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.faults.slow_down = 1.0
    proof = asyncio.ensure_future(proved(s3))
    await asyncio.sleep(0.3)
    s3.faults.slow_down = 0.0
    await proof
    monkeypatch.setattr(outcomes, "PATIENCE_S", 0.3)
    s3.faults.slow_down = 1.0
    with pytest.raises(UnavailableError, match="fewer requests"):
        await proved(s3)
