"""Limits of what takes data from elsewhere; imported from `nadi.limits`, as all others."""

from __future__ import annotations

_KIB = 1024
_MIB = 1024 * _KIB

INGEST_BODY_MAX_BYTES = 8 * _MIB  # the largest event of one append; packed, and unpacked
INGEST_EVENTS_MAX = 100_000  # in one request: with their headers they still fit one append
INGEST_LITTLE_BYTES = 64 * _KIB  # a body that needs no place: as much as its connection reads ahead anyway
INGEST_LARGE_AT_ONCE = 8  # larger bodies being read, or worked on
INGEST_PLACE_S = 10.0  # one that finds no such place within it is refused, and sent again
INGEST_PARSED_AT_ONCE = 2  # in threads, which hold the interpreter
INGEST_PARSED_HERE_BYTES = 8 * _KIB  # less is parsed in the loop's turn: about 0.1 ms
INGEST_ANSWER_S = 30.0  # until a request whose events aren't stored yet is answered so
INGEST_STREAMS = 100  # to which one caller has a writer
INGEST_REMEMBERED_S = 24 * 3600.0  # an Idempotency-Key is looked for in segments that were replaced no longer ago
INGEST_HORIZON_S = 600.0  # how old the answer may be where these begin
INGEST_SETUPS = 5_000  # of writers on one connection: a server takes 20,000
IDEMPOTENCY_KEY_MAX_CHARS = 255
OTLP_EVENTS_MAX_BYTES = 32 * _MIB  # of a request's records as events: each has what its resource says, again
OTLP_DEPTH_MAX = 32  # lists and maps within each other, in a value of a log record
