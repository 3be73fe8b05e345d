"""A store's metrics: each value matches the actual work, and the stages add up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from nadi import limits
from nadi.errors import UnavailableError
from nadi.model.framing import frame_events
from nadi.observe.metrics import Distribution, Sample
from nadi.runtime import REAL, Runtime
from nadi.segmentstore import storage_writer
from nadi.segmentstore.metrics import MEANINGS, samples
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from tests.segmentstore.harness import open_segment, open_store

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"
Figures = dict[tuple[str, ...], float | Distribution]


class Clock(Runtime):
    """A clock that advances by a millisecond at each reading, and on request."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        self.now_s += 0.001
        return self.now_s


def sampled(store: SegmentStore) -> Figures:
    """Return the samples by name and labels' values."""
    found: Figures = {}
    for sample in samples(store, REAL):
        key = (sample.meaning.name, *sample.labels)
        assert key not in found, "no duplicate sample"
        value = sample.value() if callable(sample.value) else sample.value
        assert value is not None
        found[key] = value
    return found


async def until(store: SegmentStore, is_so: Callable[[Figures], bool]) -> Figures:
    ends = asyncio.get_running_loop().time() + 60
    while not is_so(found := sampled(store)):
        assert asyncio.get_running_loop().time() < ends
        await asyncio.sleep(0.01)
    return found


def number(found: Figures, *key: str) -> float:
    value = found[key]
    assert not isinstance(value, Distribution)
    return value


def distribution(found: Figures, *key: str) -> Distribution:
    value = found[key]
    assert isinstance(value, Distribution)
    return value


async def test_each_sample_has_the_labels_of_its_meaning(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=2) as (store, _):
        found: list[Sample] = list(samples(store, REAL))
        assert all(len(sample.labels) == len(sample.meaning.labels) for sample in found)
        told_of = {sample.meaning.name for sample in found}
        assert set(MEANINGS) - told_of == {
            "nadi_store_scrub_damages",
            "nadi_store_scrub_renewals",
            "nadi_store_scrub_read_bytes",
        }, "nothing was scrubbed yet"
        assert told_of <= set(MEANINGS)


async def test_appends_by_stage(tmp_path: Path) -> None:
    async with open_segment(tmp_path, S, runtime=Clock()) as (store, peer):
        for count in range(1, 5):
            await peer.append([b"a" * 10, b"b" * 10], 2 * count)
        found = sampled(store)
        assert found["nadi_store_appends",] == 4
        assert found["nadi_store_append_events",] == 8
        assert found["nadi_store_append_bytes",] == 8 * 18
        assert found["nadi_store_frames",] == 5, "one for the table, one for each append"
        assert number(found, "nadi_store_frame_bytes") > 8 * 18
        stages = {
            stage: distribution(found, "nadi_store_append_seconds", stage) for stage in ("queue", "frame", "sync")
        }
        whole = distribution(found, "nadi_store_append_seconds", "total")
        assert [sum(stage.counts) for stage in (*stages.values(), whole)] == [4] * 4
        parts = sum(stage.total for stage in stages.values())
        assert 0 < parts <= whole.total < parts + 0.1
        assert all(stage.total > 0 for stage in stages.values())


async def test_refused_appends_count_apart(tmp_path: Path) -> None:
    async with open_segment(tmp_path, S) as (store, peer):
        await peer.append([b"a"], 1)
        await peer.ask(wire.SealSegment(7, S, ""))
        await peer.append([b"b"], 2)
        found = sampled(store)
        assert (found["nadi_store_appends",], found["nadi_store_appends_refused",]) == (1, 1)
        assert sum(distribution(found, "nadi_store_append_seconds", "total").counts) == 1


async def test_wait_for_the_queue_is_measured(tmp_path: Path) -> None:
    clock = Clock()
    async with open_segment(tmp_path, S, runtime=clock) as (store, peer):
        (container,) = store.containers
        container.queue.is_held = True
        event = frame_events([b"a"])
        peer.send(wire.AppendBlockEnd(bytes(range(16)), len(event), event, 1, 1, 9))
        await until(store, lambda found: found["nadi_store_queue_bytes", "0"] == len(event))
        clock.now_s += 0.3
        container.queue.is_held = False
        container._wake.set()
        await peer.receive()
        found = sampled(store)
        assert distribution(found, "nadi_store_append_seconds", "queue").total > 0.25
        assert distribution(found, "nadi_store_append_seconds", "total").total > 0.25
        assert distribution(found, "nadi_store_append_seconds", "sync").total < 0.25


async def test_reads_by_where_the_bytes_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", 1_000.0)
    async with open_segment(tmp_path, S) as (store, peer):
        await peer.append([b"a" * 992], 1)
        assert len(await peer.read_all(S)) == 1000
        found = sampled(store)
        assert (found["nadi_store_reads", "memory"], found["nadi_store_reads", "storage"]) == (1, 0)
        assert found["nadi_store_read_bytes", "memory"] == 1000
        assert (found["nadi_store_cache_hits",], found["nadi_store_cache_misses",]) == (1, 0)
        monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", 0.01)
        await until(store, lambda found: found["nadi_store_tier2_chunks", "tiered"] == 1)
        assert len(await peer.read_all(S)) == 1000
        found = sampled(store)
        assert (found["nadi_store_reads", "memory"], found["nadi_store_reads", "storage"]) == (1, 1)
        assert found["nadi_store_read_bytes", "storage"] == 1000
        assert number(found, "nadi_store_cache_misses") >= 1


async def test_tiering_lag_and_moved_bytes_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", 1_000.0)
    async with open_segment(tmp_path, S) as (store, peer):
        await peer.append([b"a" * 992], 1)
        first = sampled(store)
        assert first["nadi_store_tier2_lag_bytes", "0"] == 1000
        later = await until(store, lambda found: number(found, "nadi_store_tier2_lag_seconds", "0") > 0.05)
        assert later["nadi_store_tier2_chunks", "tiered"] == 0
        monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", 0.01)
        found = await until(store, lambda found: found["nadi_store_tier2_chunks", "tiered"] == 1)
        assert found["nadi_store_tier2_lag_bytes", "0"] == 0
        assert found["nadi_store_tier2_lag_seconds", "0"] == 0
        assert found["nadi_store_tier2_bytes", "tiered"] == 1000
        assert (found["nadi_store_tier2_up", "0"], found["nadi_store_tier2_errors",]) == (1, 0)


@pytest.mark.parametrize("error", [UnavailableError("tier 2 is away"), ValueError("a bug of the storage writer")])
async def test_failing_tier_2_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", 0.01)
    async with open_store(tmp_path, containers=1) as (store, peer):

        async def refused(*_: object) -> None:
            raise error

        monkeypatch.setattr(store.chunks, "put", refused)
        await peer.create(S)
        await peer.setup(S)
        await peer.append([b"a"], 1)
        found = await until(store, lambda found: found["nadi_store_tier2_errors",] != 0)
        assert found["nadi_store_tier2_up", "0"] == 0
        assert found["nadi_store_tier2_chunks", "tiered"] == 0


async def test_log_full_metric_follows_the_configured_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(tmp_path, containers=1, log_max_bytes=1_000_000) as (store, peer):

        async def refused(*_: object) -> None:
            raise UnavailableError("tier 2 is away")

        monkeypatch.setattr(store.chunks, "put", refused)
        await peer.create(S)
        await peer.setup(S)
        assert number(sampled(store), "nadi_store_log_full", "0") == 0
        await peer.append([bytes(1_000_000)], 1)
        found = sampled(store)
        assert number(found, "nadi_store_log_max_bytes") == 1_000_000
        assert number(found, "nadi_store_log_bytes", "0") > 1_000_000
        assert number(found, "nadi_store_log_full", "0") == 1


async def test_checkpoints_and_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_S", 0.05)
    async with open_store(tmp_path, containers=1) as (store, peer):
        await peer.create(S)

        def is_done(found: Figures) -> bool:
            return all(
                sum(distribution(found, f"nadi_store_{what}_seconds").counts) for what in ("checkpoint", "snapshot")
            )

        found = await until(store, is_done)
        assert distribution(found, "nadi_store_snapshot_seconds").total > 0
        assert (found["nadi_store_checkpoint_errors",], found["nadi_store_snapshot_errors",]) == (0, 0)
        await asyncio.sleep(0.5)
        for what in ("checkpoint", "snapshot"):  # nothing to write counts as written
            key = f"nadi_store_{what}_age_seconds"
            await until(store, lambda found, key=key: number(found, key, "0") < 0.4)  # type: ignore[misc]

        async def refused(*_: object) -> None:
            raise UnavailableError("tier 2 is away")

        snapshots = store.containers[0].parts.snapshots
        monkeypatch.setattr(snapshots, "_send_delta", refused)
        monkeypatch.setattr(snapshots, "_send_base", refused)
        snapshots.hasten()
        await peer.create(S.replace("stream", "other"))
        failed = await until(store, lambda found: found["nadi_store_snapshot_errors",] != 0)
        await until(store, lambda found: number(found, "nadi_store_snapshot_age_seconds", "0") > 0.5)
        await until(store, lambda found: number(found, "nadi_store_checkpoint_age_seconds", "0") < 0.4)
        assert failed["nadi_store_checkpoint_errors",] == 0


async def test_a_container_that_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(tmp_path, containers=2) as (store, _):
        found = sampled(store)
        assert [found["nadi_store_containers", state] for state in ("starting", "running", "recovering", "failed")] == [
            *(0, 2, 0, 0)
        ]
        container = store.containers[1]
        opened = asyncio.Event()
        again = container._open

        async def held() -> None:
            await opened.wait()
            await again()

        monkeypatch.setattr(container, "_open", held)
        container._recover_from(OSError("the disk fails"))
        found = await until(store, lambda found: found["nadi_store_containers", "recovering"] == 1)
        assert (found["nadi_store_container_up", "0"], found["nadi_store_container_up", "1"]) == (1, 0)
        assert ("nadi_store_log_bytes", "1") not in found, "its log is closed"
        assert found["nadi_store_recoveries",] == 1
        opened.set()
        found = await until(store, lambda found: found["nadi_store_containers", "running"] == 2)
        assert found["nadi_store_recoveries",] == 1


async def test_connection_memory_is_measured(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as (store, _):
        found = sampled(store)
        assert found["nadi_peers_max_bytes", "receiving"] == found["nadi_peers_max_bytes", "sending"]
        assert number(found, "nadi_peers_buffered_bytes", "receiving") > 0, "a connection's buffer"
        store.budget.sending.account().take(5_000)
        assert sampled(store)["nadi_peers_buffered_bytes", "sending"] == 5_000


async def test_scrub_age_grows_while_the_first_scrub_never_ends(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as (store, _):
        assert store.scrub.last is None
        assert 0 <= number(sampled(store), "nadi_store_scrub_age_seconds") < 60
        store.scrub._record.since_ms -= 30 * 86_400_000
        assert number(sampled(store), "nadi_store_scrub_age_seconds") > 21 * 86_400
