"""Limits of functions; imported from `nadi.limits`, as all others."""

from __future__ import annotations

_MIB = 1024 * 1024

FUNCTION_BATCH_EVENTS = 10_000  # the most that a handler is given at once: they are in memory several times meanwhile
FUNCTION_WORKERS = 1_000  # of one `nadi function run`: each is a process
FUNCTION_RETRIES = 1_000  # of one event
FUNCTION_LEASE_MS = 600_000  # of a transaction whose position is not recorded yet, without contact from its worker
FUNCTION_ERROR_CHARS = 2_000  # of an exception's message, in dead letters and in `nadi function status`
FUNCTION_SLICE_S = 0.5  # after which what single events gave is recorded, before the batch is done
FUNCTION_SLICE_BYTES = 8 * _MIB  # and with which it is, too
FUNCTION_START_S = 60.0  # a handler's process may take to import what it needs
FUNCTION_DRAIN_S = 30.0  # what is being handled may take this long when the function is stopped
FUNCTION_LOOK_S = 1.0  # how often the supervisor looks at unread data while there are workers, or others have some
FUNCTION_IDLE_LOOK_S = 30.0  # and how often it looks at the group while nothing is unread
FUNCTION_PROBES = 100  # segments whose length is asked for at one time
FUNCTION_RETRY_AFTER_S = 300.0  # the longest that a service can ask to wait for
FUNCTION_REPLY_BYTES = 64 * _MIB  # of a service's answer
DEAD_LETTER_DATA_BYTES = 4 * _MIB  # of an event, kept in its dead letter: base64 makes a third more of it
