"""`nadi cluster clean` of a cluster whose log is in NATS follows the same rules."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

import nadi
from nadi.object_log.engine import AgedObject
from nadi.object_log.jetstream import engine as jetstream
from nadi.object_log.opening import open_log
from nadi.runtime import REAL
from nadi.segmentstore.chain.layout import ChainPosition, encode_seal, name_of
from tests.support.nats import nats_servers, url_of
from tests.support.waiting import until

from .test_cluster import run
from .test_cluster_clean import DAYS_S, events_of, killed_thrice

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]  # test_cluster_clean.py tests the same rules with a folder
GARBAGE = {name_of(0, ChainPosition(1, 9_000)): b"f" * 500, "proof/abc/alone": b"p"}
SEAL = name_of(1, ChainPosition(1, 9_001))


async def planted(url: str, names: Collection[str]) -> None:
    engine = await open_log(url, REAL, make=False)
    for name in names:
        assert await engine.create(
            name, [GARBAGE.get(name) or encode_seal(1, ChainPosition(1, 9_001), 5, 2, bytes(16))]
        )
    await engine.close()


async def listed(url: str) -> set[str]:
    """Return all names in the log."""
    engine = await open_log(url, REAL, make=False)
    names = {name async for page in engine.listed("") for name in page}
    await engine.close()
    return names


async def ages_s(url: str) -> dict[str, float]:
    engine = await open_log(url, REAL, make=False)
    ages = {entry.name: entry.age_s for page in [page async for page in engine.aged("log")] for entry in page}
    await engine.close()
    return ages


def test_clean_of_a_log_in_nats_removes_only_garbage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nats_servers(tmp_path / "nats") as servers, nats_servers(tmp_path / "others") as others:
        store, log = f"file://{tmp_path}/store", url_of(servers)
        written = killed_thrice(store, log=log)
        asyncio.run(planted(log, [*GARBAGE, SEAL]))
        before, ages = asyncio.run(listed(log)), asyncio.run(ages_s(log))
        assert set(ages) == {name for name in before if name.startswith("log/")}
        assert all(-5.0 < age_s < 300.0 for age_s in ages.values()), ages
        clean = "cluster", "clean", "--store", store

        code, output = run(*clean)
        assert code == 0, output
        assert "skipped the log in nats:LOG" in output
        code, output = run(*clean, "--log", log)  # all of it is recent
        assert code == 0, output
        assert "skipped" not in output
        assert asyncio.run(listed(log)) == before

        with monkeypatch.context() as patched:
            patched.setattr(
                jetstream, "AgedObject", lambda name, size_bytes, age_s: AgedObject(name, size_bytes, age_s + DAYS_S)
            )
            code, output = run(*clean, "--log", log, "--dry-run")
            assert code == 0, output
            would = output
            assert "log frames              0" not in would
            code, output = run(*clean, "--log", log)
            assert code == 0, output
            assert output.replace("removed", "would remove") == would  # the dry run has removed nothing
        after = asyncio.run(listed(log))
        assert set(GARBAGE) <= before - after
        assert SEAL in after

        code, output = run(*clean, "--log", url_of(servers, "OTHER"))
        assert code == 2
        assert "nats:OTHER" in output
        asyncio.run(made(url_of(others)))
        code, output = run(*clean, "--log", url_of(others))
        assert code == 1, output
        code, output = run(*clean, "--log-option", "user=me")
        assert code == 2
        soon = "janitor_first_s=0.5,janitor_each_s=0.5,janitor_older_s=0.2,janitor_pause_s=0.01"
        with nadi.embedded(store=store, log=log, environment={"NADI_LIMITS": soon}) as server:
            asyncio.run(planted(log, [name for name in GARBAGE if name.startswith("log/")]))
            until(lambda: not asyncio.run(listed(log)).intersection(GARBAGE))  # servers clean by themselves, too
            assert sorted(events_of(server)) == sorted(written)
            assert SEAL in asyncio.run(listed(log))


async def made(url: str) -> None:
    await (await open_log(url, REAL, make=True)).close()
