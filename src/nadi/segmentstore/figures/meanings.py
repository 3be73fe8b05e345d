"""The metrics of a segment store: their names and what each means. docs/metrics.md has the same.

Labels are bounded: the stages of an append, a handful of kinds, and containers, whose number is fixed.
"""

from __future__ import annotations

from nadi.observe.metrics import Meaning, by_name

_CONTAINER = ("container",)

MEANINGS = by_name(
    (
        Meaning(
            "nadi_store_append_seconds",
            "How long appends took from their arrival to the acknowledgement (whole), and of that in the queue, in "
            "building the frame, and in the log's write and sync.",
            ("stage",),
            "histogram",
        ),
        Meaning("nadi_store_appends", "Appends that were acknowledged; each has one event or a block.", (), "counter"),
        Meaning("nadi_store_appends_refused", "Appends that were refused, for whatever reason.", (), "counter"),
        Meaning("nadi_store_append_events", "Events that were appended.", (), "counter"),
        Meaning("nadi_store_append_bytes", "Bytes that were appended, event headers included.", (), "counter"),
        Meaning("nadi_store_frames", "Frames written to the log.", (), "counter"),
        Meaning("nadi_store_frame_bytes", "Bytes of the frames; large blocks lie beside the log.", (), "counter"),
        Meaning("nadi_store_reads", "Reads that were answered, by where the bytes were.", ("source",), "counter"),
        Meaning("nadi_store_read_bytes", "Bytes that were read, by where they were.", ("source",), "counter"),
        Meaning("nadi_store_throttles", "How often a connection had to wait for room in a queue.", (), "counter"),
        Meaning("nadi_store_cache_bytes", "Bytes of blocks in memory."),
        Meaning("nadi_store_cache_max_bytes", "How many there may be."),
        Meaning("nadi_store_cache_hits", "Blocks that reads found in memory.", (), "counter"),
        Meaning("nadi_store_cache_misses", "Reads that met a block that wasn't in memory.", (), "counter"),
        Meaning("nadi_store_cache_evictions", "Blocks dropped from memory to make room.", (), "counter"),
        Meaning("nadi_store_containers", "Containers of this server, by state.", ("state",)),
        Meaning("nadi_store_container_up", "1 while the container takes requests, else 0.", _CONTAINER),
        Meaning("nadi_store_recoveries", "How often a container had to recover while it ran.", (), "counter"),
        Meaning("nadi_store_damaged_places", "Known damaged places of a container's data.", _CONTAINER),
        Meaning("nadi_store_queue_bytes", "Bytes of requests that wait for a frame.", _CONTAINER),
        Meaning("nadi_store_log_bytes", "Bytes of a container's log, and beside it.", _CONTAINER),
        Meaning("nadi_store_log_max_bytes", "Past this, appends to a container are refused until tier 2 takes data."),
        Meaning(
            "nadi_store_log_full", "1 while the log is past its bound, or its disk has no room, else 0.", _CONTAINER
        ),
        Meaning("nadi_store_log_waits", "How often a frame waited for room in the log.", (), "counter"),
        Meaning("nadi_store_log_wait_seconds", "How long frames waited for room in the log.", (), "counter"),
        Meaning("nadi_store_tier2_lag_bytes", "Bytes in the log that are to be moved to tier 2.", _CONTAINER),
        Meaning(
            "nadi_store_tier2_lag_seconds",
            "How long the oldest of them have been there, since the container was opened at most.",
            _CONTAINER,
        ),
        Meaning("nadi_store_tier2_up", "1 if the last round of moving to tier 2 succeeded, else 0.", _CONTAINER),
        Meaning("nadi_store_tier2_chunks", "Chunks stored, by why.", ("kind",), "counter"),
        Meaning("nadi_store_tier2_bytes", "Bytes of the chunks that were stored, by why.", ("kind",), "counter"),
        Meaning("nadi_store_tier2_chunks_deleted", "Chunks that were deleted, as nothing needs them.", (), "counter"),
        Meaning("nadi_store_tier2_errors", "Rounds of moving to tier 2 that failed.", (), "counter"),
        Meaning("nadi_store_checkpoint_seconds", "How long it took to write the state.", (), "histogram"),
        Meaning("nadi_store_checkpoint_errors", "Checkpoints that failed.", (), "counter"),
        Meaning(
            "nadi_store_checkpoint_age_seconds",
            "How long ago the state was written last, or had nothing to be written.",
            _CONTAINER,
        ),
        Meaning("nadi_store_snapshot_seconds", "How long it took to store a snapshot of the state.", (), "histogram"),
        Meaning("nadi_store_snapshot_errors", "Snapshots that failed.", (), "counter"),
        Meaning(
            "nadi_store_snapshot_age_seconds",
            "How long ago a snapshot was stored last, or there was nothing to be stored.",
            _CONTAINER,
        ),
        Meaning(
            "nadi_store_paused_seconds",
            "How long work in the background has paused for frames.",
            ("container", "work"),
            "counter",
        ),
        Meaning("nadi_store_scrub_running", "1 while everything stored is being read, else 0."),
        Meaning(
            "nadi_store_scrub_age_seconds",
            "How long ago the last scrub ended, or else the folder was first served, by the wall clock.",
        ),
        Meaning("nadi_store_scrub_damages", "Damaged places that the last scrub found."),
        Meaning("nadi_store_scrub_renewals", "Damaged copies that the last scrub found and replaced."),
        Meaning("nadi_store_scrub_read_bytes", "Bytes that the running scrub has read, or else the last one."),
        Meaning("nadi_peers_held_bytes", "Bytes held for those who are connected, by direction.", ("direction",)),
        Meaning("nadi_peers_max_bytes", "How many they may be, by direction.", ("direction",)),
        Meaning("nadi_peers_waiting", "Connections that wait for some of that memory."),
        Meaning("nadi_peers_too_slow", "Connections ended because their peers were too slow.", (), "counter"),
    )
)
