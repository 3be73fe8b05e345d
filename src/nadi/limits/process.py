"""Limits of processing streams; imported from `nadi.limits`, as all others."""

from __future__ import annotations

PROCESS_BEAT_S = 1.0  # how often a worker says that it is there
PROCESS_GONE_S = 5.0  # one that hasn't for so long is gone: others take its segments
PROCESS_SILENT_S = 10.0  # one that said nothing for so long, by the observer's clock, isn't shown as there
PROCESS_END_S = 6.0  # what runs gets so long to end once it is told to; then it is cancelled, as a kill does no harm
PROCESS_LEAVE_S = 1.0  # and so long to say that it leaves
PROCESS_BATCH_BYTES = 4 << 20  # of events that a processor handles before it records how far it is
PROCESS_BATCH_EVENTS = 1_000
PROCESS_RECORD_S = 1.0  # how often it does so within a batch that takes longer
PROCESS_BATCH_S = 0.02  # how long the first event of a batch waits for others
