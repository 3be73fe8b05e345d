"""`nadi cluster clean` removes what killed servers left, and nothing that is in use."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

import nadi
from nadi.object_log.opening import open_engines
from nadi.runtime import REAL
from nadi.segmentstore.chain.layout import ChainPosition, encode_seal, name_of
from nadi.segmentstore.tier2.records import ContainerRecords
from tests.support.waiting import until

from .test_cluster import run

LIMITS = "chunk_flush_age_s=0.02,storage_writer_tick_s=0.02,checkpoint_interval_s=0.05,snapshot_interval_s=0.1"
DAYS_S = 3 * 24 * 3600.0


def age(file: Path, by_s: float) -> None:
    then = time.time() - by_s
    os.utime(file, (then, then))


def events_of(server: nadi.standalone.EmbeddedServer) -> list[bytes]:
    with nadi.StreamManager(server.controller_uri) as manager:
        end = manager.stream_info("home", "meters").tail
        return [event.data for event in manager.read_events("home", "meters", end=end)]


def killed_thrice(url: str, **how: Any) -> list[bytes]:
    """Write to a server of a cluster that is killed three times; return the written events."""
    written: list[bytes] = []
    for start in range(3):
        server = nadi.embedded(store=url, containers=2, environment={"NADI_LIMITS": LIMITS}, **how)
        with nadi.StreamManager(server.controller_uri) as manager:
            if not start:
                manager.create_scope("home")
                manager.create_stream("home", "meters", 3)
            with manager.create_writer("home", "meters") as writer:
                for number in range(20):
                    written.append(f"{start} {number}".encode() * 50)
                    writer.write_event(written[-1], routing_key=str(number))
                writer.flush()
            until_snapshot(url, start + 1)
        server.kill()
    return written


def until_snapshot(url: str, epoch: int) -> None:
    """Wait until container 0 has a snapshot of this epoch, and events are in tier 2."""

    async def newest() -> int:
        engine, registry = await open_engines(url, REAL)
        try:
            return (await ContainerRecords(registry, REAL).read(0)).record.start.epoch
        finally:
            await engine.close()

    store = Path(url.removeprefix("file://"))
    until(lambda: asyncio.run(newest()) == epoch and any(store.glob("container-*/*/*")))


def objects(store: Path) -> set[str]:
    return {f.relative_to(store).as_posix() for f in store.rglob("*") if f.is_file() and ".nadi" not in f.parts}


def test_clean_removes_only_garbage(tmp_path: Path) -> None:
    store, url = tmp_path / "store", f"file://{tmp_path}/store"
    written = killed_thrice(url)
    plain = objects(store)
    chunks = [name for name in plain if name.startswith("container-")]
    assert chunks
    # leftovers of deposed owners, failed snapshots and interrupted tiering
    garbage = {
        name_of(0, ChainPosition(1, 9_000)): b"f" * 500,
        f"{chunks[0].rpartition('/')[0]}/{'0' * 16}-{'a' * 32}": b"no description",
        f"snapshots/container-0/base-{0:016x}-{'b' * 32}-000000": b"s",
        "servers/0123456789abcdef": b"0" * 32 + b"{}",
        "proof/abc/alone": b"p",
    }
    seal = name_of(1, ChainPosition(1, 9_001))
    garbage[seal] = encode_seal(1, ChainPosition(1, 9_001), 5, 2, bytes(16))
    for name, data in garbage.items():
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(data)
    for name in objects(store):
        age(store / name, DAYS_S)
    for name in ("containers/0", "containers/1"):  # the store's clock is that of frequently written objects
        age(store / name, 0)
    before = objects(store)
    code, output = run("cluster", "clean", "--store", url, "--dry-run")
    assert code == 0, output
    assert output.startswith("would remove")
    assert objects(store) == before
    code, output = run("cluster", "clean", "--store", url)
    assert code == 0, output
    after = objects(store)
    removed = before - after
    retained = {seal, next(name for name in garbage if name.startswith("container-"))}
    assert set(garbage) - retained <= removed
    assert retained <= after
    # a server killed while tiering may have left a chunk, too
    kept = re.search(r"^kept (\d+) chunks", output, re.MULTILINE)
    assert kept is not None, output
    assert 1 <= int(kept[1]) <= len(chunks) + 1
    # entries of killed servers are removed, too, and maybe released frames, but no chunk with events
    assert all(name.startswith(("log/", "servers/", "snapshots/")) for name in removed - set(garbage))
    assert run("cluster", "clean", "--store", url)[1].startswith("removed 0 objects")
    with nadi.embedded(store=url) as server:
        assert sorted(events_of(server)) == sorted(written)


def test_clean_keeps_recent_objects(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with nadi.embedded(store=url, containers=1):
        pass
    (tmp_path / "store/proof/x").mkdir(parents=True)
    (tmp_path / "store/proof/x/alone").write_bytes(b"p")
    assert run("cluster", "clean", "--store", url)[1].startswith("removed 0 objects")
    code, output = run("cluster", "clean", "--store", url, "--older", "5min")
    assert code == 2
    assert "1h" in output
