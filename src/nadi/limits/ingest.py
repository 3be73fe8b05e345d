"""Limits of what takes data from elsewhere; imported from `nadi.limits`, as all others."""

from __future__ import annotations

_KIB = 1024
_MIB = 1024 * _KIB

# --- over HTTP -----------------------------------------------------------------------------------
INGEST_BODY_MAX_BYTES = 8 * _MIB  # the largest event of one append; packed, and unpacked
INGEST_EVENTS_MAX = 100_000  # in one request: with their headers they still fit one append
INGEST_LITTLE_BYTES = 64 * _KIB  # a body that needs no place: as much as its connection reads ahead anyway
INGEST_LARGE_AT_ONCE = 8  # larger bodies being read, or worked on
INGEST_PLACE_S = 10.0  # one that finds no such place within it is refused, and sent again
INGEST_PARSED_AT_ONCE = 2  # in threads, which hold the interpreter
INGEST_PARSED_HERE_BYTES = 8 * _KIB  # less is parsed in the loop's turn: about 0.1 ms
INGEST_ANSWER_S = 30.0  # until a request whose events aren't stored yet is answered so
INGEST_CLIENTS = 64  # callers, by their credentials, for whom a client is kept,
INGEST_STREAMS = 100  # and streams to which one of these has a writer
INGEST_REMEMBERED_S = 24 * 3600.0  # an Idempotency-Key is looked for in segments that were replaced no longer ago
INGEST_HORIZON_S = 600.0  # how old the answer may be where these begin
INGEST_SETUPS = 5_000  # of writers on one connection: a server takes 20,000
IDEMPOTENCY_KEY_MAX_CHARS = 255
OTLP_EVENTS_MAX_BYTES = 32 * _MIB  # of a request's records as events: each has what its resource says, again
OTLP_DEPTH_MAX = 32  # lists and maps within each other, in a value of a log record

# --- from files ----------------------------------------------------------------------------------
INGEST_LINE_MAX_BYTES = 4 * _MIB  # of an event; a longer line is cut into several
INGEST_READ_BYTES = _MIB  # of a file at a time
INGEST_FILES = 2_000  # open at a time; others wait until some of these have been quiet for a while
INGEST_FILES_LEFT = 200  # of those that the process may open, for all else
INGEST_FILES_AT_ONCE = 8  # being read and written, each with some MiB in memory
INGEST_LOOK_S = 0.25  # how often a file is looked at for more,
INGEST_SCAN_S = 1.0  # and folders for other files
INGEST_KEEP_S = 1.0  # how often positions are kept; what is written since is known to the segments
INGEST_END_S = 5.0  # for the last positions, once it is stopped
INGEST_QUIET_S = 10.0  # after which a file that another has replaced gets no more: its last line ends where it does
INGEST_SEEN_S = 24 * 3600.0  # how often it is kept that a file is still there
INGEST_PLACES_KEPT_S = 30 * 24 * 3600.0  # of files that nobody has seen since

# --- from syslog ---------------------------------------------------------------------------------
SYSLOG_MESSAGE_BYTES = 64 * _KIB  # RFC 5425 asks for 8 KiB
SYSLOG_CONNECTIONS = 500  # each may hold some 300 KiB that came and aren't with the writer yet, twice that with TLS
SYSLOG_CONNECTIONS_OF_ADDRESS = 50
SYSLOG_HANDSHAKE_S = 10.0  # of TLS
SYSLOG_SILENT_S = 60  # of a peer; then it is asked whether it is still there
SYSLOG_QUEUE_BYTES = 16 * _MIB  # of datagrams that aren't stored yet, half of it of one address
SYSLOG_SOCKET_BYTES = 8 * _MIB  # asked of the system for those that aren't read yet
SYSLOG_BATCH = 500  # datagrams in one turn of the loop
SYSLOG_CLOSING_S = 10.0  # for what was read to be stored, once it is to stop
