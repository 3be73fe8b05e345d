"""Which columns rows may have. Spark has a program of its own find out, so nothing is imported here that takes time."""

from __future__ import annotations

VALUE = "value"  # its type is that of the events' schema
USUAL = ("event", "scope", "stream", "segment_id", "offset")
APPEND_TIME, EVENT_TIME = "append_time", "event_time"
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of the times that writers note
USUAL_UNIT, NO_UNIT = "ms", "none"
NEED_EVENTS = ("event", VALUE)  # the others need to know no more than where events lie
POSITIONS = ("position_before", "position")
