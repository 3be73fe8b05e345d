"""Samples a running store's metrics, in the loop, at a scrape. Takes some microseconds per container."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nadi.observe.metrics import MetricDefinition, Sample, Value, by_name
from nadi.runtime import Runtime
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.scrub import Scrubber
from nadi.segmentstore.store import SegmentStore

STATES = ("starting", "running", "recovering", "failed")
_CONTAINER = ("container",)
_COUNTED = (  # with the attribute of `StoreCounters`
    ("nadi_store_appends", "Acknowledged appends, each of one event or a block.", "appends"),
    ("nadi_store_appends_refused", "Refused appends, for any reason.", "refused_appends"),
    ("nadi_store_append_events", "Events appended.", "events"),
    ("nadi_store_append_bytes", "Bytes appended, event headers included.", "append_bytes"),
    ("nadi_store_frames", "Frames written to the log.", "frames"),
    ("nadi_store_frame_bytes", "Bytes of the frames, except large blocks in separate files.", "frame_bytes"),
    ("nadi_store_throttles", "Times a connection waited for space in a queue.", "throttles"),
    ("nadi_store_recoveries", "Recoveries of running containers.", "recoveries"),
    ("nadi_store_log_waits", "Times a frame waited for space in the log.", "log_waits"),
    ("nadi_store_log_wait_seconds", "Time that frames waited for space in the log.", "log_wait_s"),
    ("nadi_store_tier2_chunks_deleted", "Chunks deleted because nothing refers to them.", "deleted_chunks"),
    ("nadi_store_tier2_errors", "Failed rounds of tiering.", "tier2_errors"),
    ("nadi_store_checkpoint_errors", "Failed checkpoints.", "checkpoint_errors"),
    ("nadi_store_snapshot_errors", "Failed snapshots.", "snapshot_errors"),
)

MEANINGS = by_name(
    (
        *(MetricDefinition(name, text, (), "counter") for name, text, _ in _COUNTED),
        MetricDefinition(
            "nadi_store_append_seconds", "Latency of appends, in total and by stage.", ("stage",), "histogram"
        ),
        MetricDefinition("nadi_store_reads", "Reads answered, by source of the bytes.", ("source",), "counter"),
        MetricDefinition("nadi_store_read_bytes", "Bytes read, by source.", ("source",), "counter"),
        MetricDefinition("nadi_store_cache_bytes", "Bytes of blocks in memory."),
        MetricDefinition("nadi_store_cache_max_bytes", "Limit on the bytes of blocks in memory."),
        MetricDefinition("nadi_store_cache_hits", "Blocks that reads found in memory.", (), "counter"),
        MetricDefinition("nadi_store_cache_misses", "Reads of blocks that weren't in memory.", (), "counter"),
        MetricDefinition("nadi_store_cache_evictions", "Blocks evicted from memory.", (), "counter"),
        MetricDefinition("nadi_store_containers", "Containers of this server, by state.", ("state",)),
        MetricDefinition("nadi_store_container_up", "1 while the container takes requests, else 0.", _CONTAINER),
        MetricDefinition("nadi_store_damaged_ranges", "Known damaged ranges of a container's data.", _CONTAINER),
        MetricDefinition("nadi_store_queue_bytes", "Bytes of requests waiting for a frame.", _CONTAINER),
        MetricDefinition("nadi_store_log_bytes", "Bytes of a container's log, with its separate files.", _CONTAINER),
        MetricDefinition(
            "nadi_store_log_max_bytes", "Log size above which appends are refused until tier 2 accepts data."
        ),
        MetricDefinition(
            "nadi_store_log_full", "1 while the log exceeds its limit or its disk is full, else 0.", _CONTAINER
        ),
        MetricDefinition("nadi_store_tier2_lag_bytes", "Bytes in the log not yet in tier 2.", _CONTAINER),
        MetricDefinition("nadi_store_tier2_lag_seconds", "Age of the oldest bytes not yet in tier 2.", _CONTAINER),
        MetricDefinition("nadi_store_tier2_up", "1 if the last round of tiering succeeded, else 0.", _CONTAINER),
        MetricDefinition("nadi_store_tier2_chunks", "Chunks stored, by reason.", ("kind",), "counter"),
        MetricDefinition("nadi_store_tier2_bytes", "Bytes of the chunks stored, by reason.", ("kind",), "counter"),
        MetricDefinition("nadi_store_checkpoint_seconds", "Time taken to write the state.", (), "histogram"),
        MetricDefinition(
            "nadi_store_checkpoint_age_seconds", "Time since the stored state was last up to date.", _CONTAINER
        ),
        MetricDefinition(
            "nadi_store_snapshot_seconds", "Time taken to store a snapshot of the state.", (), "histogram"
        ),
        MetricDefinition(
            "nadi_store_snapshot_age_seconds", "Time since the snapshots were last up to date.", _CONTAINER
        ),
        MetricDefinition(
            "nadi_store_paused_seconds", "Time that background work was paused.", ("container", "work"), "counter"
        ),
        MetricDefinition("nadi_store_scrub_running", "1 while a scrub is running, else 0."),
        MetricDefinition("nadi_store_scrub_age_seconds", "Time since the last scrub ended, or since the first start."),
        MetricDefinition("nadi_store_scrub_damages", "Damaged places found by the last scrub."),
        MetricDefinition("nadi_store_scrub_renewals", "Damaged copies replaced by the last scrub."),
        MetricDefinition("nadi_store_scrub_read_bytes", "Bytes read by the running scrub, or else by the last one."),
        MetricDefinition(
            "nadi_peers_buffered_bytes", "Bytes buffered for connected peers, by direction.", ("direction",)
        ),
        MetricDefinition(
            "nadi_peers_max_bytes", "Limit on bytes buffered for connected peers, by direction.", ("direction",)
        ),
        MetricDefinition("nadi_peers_waiting", "Connections waiting for buffer memory."),
        MetricDefinition("nadi_peers_too_slow", "Connections closed because their peers were too slow.", (), "counter"),
    )
)


def samples(store: SegmentStore, runtime: Runtime) -> Iterator[Sample]:
    counts, cache = store.counts, store.cache
    for name, _, attribute in _COUNTED:
        yield _sample(name, getattr(counts, attribute))
    for stage in ("queue", "frame", "sync", "total"):
        yield _sample("nadi_store_append_seconds", getattr(counts, stage).read(), stage)
    yield _sample("nadi_store_reads", counts.reads, "memory")
    yield _sample("nadi_store_reads", counts.fetched_reads, "storage")
    yield _sample("nadi_store_read_bytes", counts.read_bytes, "memory")
    yield _sample("nadi_store_read_bytes", counts.fetched_bytes, "storage")
    yield _sample("nadi_store_cache_bytes", cache.size_bytes)
    yield _sample("nadi_store_cache_max_bytes", cache.max_bytes)
    yield _sample("nadi_store_cache_hits", cache.hits)
    yield _sample("nadi_store_cache_misses", cache.misses)
    yield _sample("nadi_store_cache_evictions", cache.evictions)
    yield _sample("nadi_store_tier2_chunks", counts.tiered_chunks, "tiered")
    yield _sample("nadi_store_tier2_chunks", counts.compacted_chunks, "compacted")
    yield _sample("nadi_store_tier2_bytes", counts.tiered_bytes, "tiered")
    yield _sample("nadi_store_tier2_bytes", counts.compacted_bytes, "compacted")
    yield _sample("nadi_store_checkpoint_seconds", counts.checkpoints.read())
    yield _sample("nadi_store_snapshot_seconds", counts.snapshots.read())
    yield from _containers(store, runtime)
    yield from _scrub(store.scrub, runtime)
    for direction, pool in (("receiving", store.budget.receiving), ("sending", store.budget.sending)):
        yield _sample("nadi_peers_buffered_bytes", pool.buffered_bytes, direction)
        yield _sample("nadi_peers_max_bytes", pool.total_bytes, direction)
    yield _sample("nadi_peers_waiting", store.budget.waiting)
    yield _sample("nadi_peers_too_slow", store.too_slow)


def _sample(name: str, value: Value, *labels: str) -> Sample:
    return Sample(MEANINGS[name], value, labels)


def _containers(store: SegmentStore, runtime: Runtime) -> Iterator[Sample]:
    states = Counter(dict.fromkeys(STATES, 0))
    for container in store.containers:
        state, number = state_of(container), str(container.number)
        states[state] += 1
        yield _sample("nadi_store_container_up", int(state == "running"), number)
        for work, seconds in ({"tiering": 0.0, "checkpoints": 0.0} | container.throttle.paused_s).items():
            yield _sample("nadi_store_paused_seconds", seconds, number, work)
        if state == "running":
            yield from _running(container, number, runtime.monotonic())
    for state, count in states.items():
        yield _sample("nadi_store_containers", count, state)
    yield _sample("nadi_store_log_max_bytes", store.log_max_bytes)
    for writer in store.storage_writers:
        is_up = writer.started and not writer.ended and writer.error is None
        yield _sample("nadi_store_tier2_up", int(is_up), str(writer.number))


def state_of(container: Container) -> str:
    if container.ended:
        return "failed"
    if container.failure is not None:
        return "recovering"
    return "running" if container.started else "starting"


def _running(container: Container, number: str, now_s: float) -> Iterator[Sample]:
    state = container.state
    is_full = container.logged_bytes > container.log_max_bytes or container.waits_for_space
    oldest = next(state.to_move(), None)
    yield _sample("nadi_store_damaged_ranges", len(container.damaged) + container.damage.unlisted, number)
    yield _sample("nadi_store_queue_bytes", container.queue.size_bytes, number)
    yield _sample("nadi_store_log_bytes", container.logged_bytes, number)
    yield _sample("nadi_store_log_full", int(is_full), number)
    frames = list(state.frames.values())  # possibly a hundred thousand, so added up outside the loop
    yield _sample(
        "nadi_store_tier2_lag_bytes", lambda: sum(frame.live_bytes - frame.aside_bytes for frame in frames), number
    )
    yield _sample("nadi_store_tier2_lag_seconds", now_s - oldest.at if oldest is not None else 0.0, number)
    yield _sample("nadi_store_checkpoint_age_seconds", now_s - container.checkpoints.current_at, number)
    yield _sample("nadi_store_snapshot_age_seconds", now_s - container.parts.snapshots.current_at, number)


def _scrub(scrub: Scrubber, runtime: Runtime) -> Iterator[Sample]:
    last, latest = scrub.last, scrub.running or scrub.last
    yield _sample("nadi_store_scrub_running", int(scrub.running is not None))
    yield _sample("nadi_store_scrub_age_seconds", max(0.0, (runtime.now_ms() - scrub.since_ms) / 1000))
    if last is not None:
        yield _sample("nadi_store_scrub_damages", last.damages)
        yield _sample("nadi_store_scrub_renewals", last.renewals)
    if latest is not None:
        yield _sample("nadi_store_scrub_read_bytes", latest.read_bytes)
