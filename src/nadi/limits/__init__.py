"""All limits of nadi, each with its unit and the reason for its size; stream processing's limits are in `processing`.

NADI_LIMITS overrides them; tests make them small that way: NADI_LIMITS="chunk_flush_age_s=0.2,chunk_flush_bytes=65536".
"""

from __future__ import annotations

import math
import os
from typing import Any

from nadi.limits.processing import *  # noqa: F403 - overridden like all other limits
from nadi.limits.processing import KIB, MIB

# --- wire protocol -------------------------------------------------------------------------------
# Both official clients refuse payloads over 0xFFFFFF, but a Java batch write may build a slightly larger append.
# So the server accepts up to 17 MiB and never sends more than 0xFFFFFF.
MAX_FRAME_SENT_BYTES = 0x00FF_FFFF
MAX_FRAME_RECEIVED_BYTES = 17 * MIB
MAX_EVENT_BYTES = 8 * MIB  # larger events are written through a transient segment
FIELD_PATH_NAMES = 32  # of a path to a field of an event: levels of nesting
MAX_LARGE_EVENT_BYTES = 1024 * MIB
READ_REPLY_MAX_BYTES = 2 * MIB  # the maximum that official servers send in one SegmentRead
READ_WHOLE_BYTES = 64 * KIB  # reads up to this size are answered completely: official index readers expect one reply

# --- peers of the segment store ------------------------------------------------------------------
PEERS_BYTES = 256 * MIB  # for all peers together: half for received data being handled, half for data not yet sent
PEERS_SHARE = 4  # one connection may use this fraction of the free part: 24 MiB of 128 if no other uses any
PEERS_LITTLE_BYTES = 2 * MIB  # connections below this share the last quarter: a block of events, or a reply
PEERS_LEAST_BYTES = 32 * KIB  # guaranteed to every connection, in each direction, even when the budget is used up
CONNECTIONS_MAX = 4_096  # with the guaranteed 64 KiB each, they take as much as another budget
CONNECTIONS_OF_ADDRESS = 2_048  # from one address: official writers have one connection per segment
FILES_FOR_STORAGE = 256  # of the process's open files, not available to connections
UNKNOWN_PEER_FRAME_BYTES = 64 * KIB  # before the first valid token, or the first command if no token is required
UNKNOWN_PEER_S = 60.0  # from connecting until then; clients connect when they have a request
FRAME_TIMEOUT_S = 30.0  # from a frame's first byte to its last,
FRAME_LEAST_BYTES_S = 128 * KIB  # plus a second for each of these: the largest event may take 94 s
SEND_TIMEOUT_S = 60.0  # within which a peer must accept some data; a client's longest pause
SEND_PROGRESS_BYTES = 64 * KIB  # counts as progress, if more is waiting
SEND_HIGH_WATER_BYTES = 256 * KIB  # not yet sent to the network; above it no reply is built
SEND_LOW_WATER_BYTES = 64 * KIB  # building resumes at or below this
CONNECTION_REPLIES_BYTES = 16 * MIB  # being fetched or sent for one connection's reads: twice a client's read-ahead
CONNECTION_UNSENT_BYTES = 4 * MIB  # of short replies; above it the connection isn't read
CONNECTION_RECEIVED_BYTES = 24 * MIB  # received from one connection: the largest frame, and some to work on
CONNECTION_APPENDS_WAITING = 500  # in a container's queue: one frame's worth
CONNECTION_SESSIONS = 20_000  # append sessions of one connection; official clients stop at 2,000
CONNECTION_COMMANDS_WAITING = 1_000  # other than appends and reads,
CONNECTION_COMMANDS_AT_ONCE = 200  # and handled concurrently, if their replies are small,
COMMANDS_UNDER_WAY = 4_000  # up to this total over all connections, some 3 KB each; each connection may always have one
CONNECTION_READS_WAITING = 1_000  # long polls of one connection
COMMANDS_AT_ONCE = 48  # handled on arrival for one connection; further ones wait for its turn
COMMANDS_UNDER_CONTENTION = (
    2  # instead, while other connections wait: a peer with few commands doesn't wait behind them
)
COMMANDS_A_TURN = 50  # of all waiting connections, in one iteration of the loop: about 20 us each, 60 on a busy machine
READ_REPLY_FIRST_BYTES = 128 * KIB  # a connection's first reply; each reply sent doubles the next one's size
READS_AT_ONCE = 4  # small reads, or one large read, answered to one connection before it waits for its turn
READ_WEIGHT_BYTES = 4 * KIB  # of a reply count as one command: they are copied to fresh memory
WAKES_A_TURN = 100  # waiters for a segment's tail, or for memory
PATROL_S = 1.0  # interval of checks for connections that exceed a timeout
ACCEPTS_A_TURN = 10  # new connections, about 0.2 ms each
FETCHES_AT_ONCE = 16  # from the log or tier 2, for all readers: up to 4 MiB each
READ_AHEAD_FETCHES = 8  # of them for read-ahead; above it only requested data is fetched
# in one command, some 10 us each: a reader group's state has one for each segment of a stream
LIST_MAX_ENTRIES = 25_000

# --- segment store -------------------------------------------------------------------------------
RECEIVE_BUFFER_BYTES = 256 * KIB
RECEIVE_BUFFER_LEAST_BYTES = 16 * KIB  # initial buffer of a server's connection: most peers send little
APPEND_SESSIONS_MAX = 1_000  # of one connection; above it idle sessions are closed, since clients don't close them:
APPEND_SESSION_IDLE_S = 600.0  # a writer idle for this long sets its session up again
QUEUE_MAX_BYTES = 64 * MIB  # appends waiting in one container; above it connections stop reading
FRAME_MAX_BYTES = 4 * MIB  # one frame of the write-ahead log: large enough for disk speed, small enough for p99
FRAME_MAX_REQUESTS = 500  # in one such frame: about 15 us each, during which the loop is blocked
CACHE_MAX_BYTES = 96 * MIB  # blocks cached for readers, over all containers
LOG_FILE_BYTES = 64 * MIB  # one file of the write-ahead log
LOG_FIRST_FILE_BYTES = 8 * MIB  # the first file that an owner preallocates; each further file is twice as large
LOG_SPARE_FILES = 4  # truncated files kept for reuse
LOG_RESERVE_BYTES = (
    4 * MIB
)  # a file reserved for a full disk: about 1,000 frames of truncations, deletions and the like
DISK_RESERVED_BYTES = 64 * MIB  # that the log leaves free on its disk, for the state and for chunks,
DISK_RESERVED_PART = 16  # but at most a sixteenth of the disk
LOG_QUICK_FRAME_BYTES = 64 * KIB  # frames up to this size are written in the loop's thread, if that takes
LOG_QUICK_WRITE_S = 0.000_5  # at most this long on average: switching to another thread and back takes as long
LOG_QUICK_PAUSE_S = 0.1  # otherwise the writer thread writes all frames for this time,
LOG_QUICK_LONGEST_PAUSE_S = 30.0  # doubled each time the disk is slow again
RUN_LEAST_BYTES = 128 * KIB  # of one segment in one frame: larger runs go to a file of their own next to the log,
RUN_FILE_BYTES = 32 * MIB  # which becomes a chunk of up to this size
RUN_CARRY_BYTES = 256 * KIB  # of small appends between large ones that are included
RUN_FILES_OPEN = 16  # of one container, one per segment; all are preallocated
RUN_FILES_READY = 2  # preallocated in advance, once there is a large run
RUN_IDLE_S = 1.0  # a file unused for this long is closed for another segment's
RUN_WRITERS = 4  # files of one container written concurrently
LOG_MAX_BYTES = 4 * 1024 * MIB  # un-tiered log of one container; above it writers wait for tier 2
CHUNK_FLUSH_BYTES = 8 * MIB  # a segment is moved to tier 2 when it has this much waiting
CHUNK_MAX_BYTES = 16 * MIB  # of a chunk built in memory, from the log or by compaction
CHUNK_FLUSH_AGE_S = 10.0  # or when its oldest waiting bytes are this old
STORAGE_WRITER_TICK_S = 0.25  # interval of the storage writer's checks
STORAGE_WRITER_RUNS = 4  # moved to tier 2 concurrently, each in memory meanwhile: up to CHUNK_MAX_BYTES
CHUNK_GARBAGE_DELAY_S = 30.0  # readers with the name of a replaced chunk finish within this time
CHECKPOINT_INTERVAL_S = 2.0  # interval of write-behind from memory to LMDB
CHECKPOINT_DIRTY_RECORDS = 5_000  # or when this many records wait: collecting them blocks the loop for 50 ms
THROTTLE_SLOWDOWN = 1.5  # if small frames take this many times their idle latency, background work pauses,
THROTTLE_MAX_FACTOR = 4.0  # for up to this many times its working time,
THROTTLE_MAX_S = 0.25  # and at most this long at a time
CHECKPOINT_ROWS = 100  # written without a break, about 4 us each, during which the loop gets half of the interpreter;
CHECKPOINT_PAUSE_S = 0.001  # then the thread sleeps this long,
CHECKPOINT_RESTS = 1_000  # at most this many times per checkpoint
RECORDS_IN_MEMORY = 10_000  # idle records of one container; 1 KB each, and loaded again in 32 us
RECORD_ATTRIBUTES_IN_MEMORY = 1_000  # of one segment, mostly writers' numbers; more are read from disk
STATE_MAP_BYTES = 256 * MIB  # initial address space for a container's state; doubled when it is full
STATE_CHANGES_MAX_BYTES = 32 * MIB  # of the state kept in memory for its next snapshot; above it a full one is made
SNAPSHOT_INTERVAL_S = 10.0  # interval of incremental snapshots of the state in tier 2
SNAPSHOT_LOG_BYTES = 8 * MIB  # or when the log has grown by this much, but not more often than checkpoints
SNAPSHOT_DELTAS = 64  # then a full snapshot is made; also when they reach a quarter of its size
SNAPSHOT_PART_BYTES = 8 * MIB  # of a full snapshot in one object, before compression
SNAPSHOT_READ_AHEAD = 4  # parts, while a state is restored from a snapshot
VERIFIED_ROWS = 500  # of a full snapshot, before it counts: checked together, half a microsecond each
SNAPSHOT_STOP_S = 5.0  # a clean stop waits this long for its last snapshot; otherwise the next start replays the log
SNAPSHOT_STOP_BYTES = 16 * MIB  # the largest state for which it still makes a full snapshot, in a tenth of a second
SNAPSHOT_RETRY_MAX_S = 60.0  # longest pause between two tries while tier 2 is unavailable
LOCATE_EXTENTS = 1_300  # searched for an event's start, before and after: ten times the extents of the largest event
LOCATE_BLOCK_BYTES = 128 * KIB  # read at a time for that
WALKS_AT_ONCE = 4  # searches for events' starts: each holds a block
HOPS_A_TURN = 500  # over events, by each search in one iteration of the loop: about 0.15 us each,
HOPS_A_COMMAND = 120  # this many cost as much as one command
DAMAGE_LISTED = 1_000  # damaged ranges that a container lists; reads report all
TIME_INDEX_MS = 1_000  # minimum time between two entries of a segment's time index,
TIME_INDEX_BYTES = 4 * KIB  # and minimum data between them; with 40 bytes per entry, the index stays at 1 % of the data
TIME_INDEX_MOST_MS = 10_000  # maximum time between two entries, if fewer bytes arrive
MOMENTS_AT_ONCE = 4_000  # entries in one reply
TIMES_INDEXED_AT_ONCE = 4_000  # ranges of events whose times are added to the index by one command
EVENT_TIME_MIN, EVENT_TIME_MAX = -(1 << 62), 1 << 62  # in any unit
WATERMARKS_AT_ONCE = 16_384  # that a Spark task keeps for one segment
TIME_INDEX_TRIM_ENTRIES = 1_000  # of a truncated segment, deleted with one checkpoint

LOAD_SEGMENTS = 10_000  # measured in one container; 200 bytes and 0.3 us a second each
EVENT_SIZES_LISTED = 100_000  # in one reply: at most 400 KiB, and a tenth if they are equal
EVENT_SIZES_SCANNED_BYTES = 8 * MIB  # scanned for one reply
EVENT_SIZES_A_TURN = 1_000  # of them in one iteration of the loop, 0.15 us each; equal sizes hardly count
EVENT_SIZES_AT_ONCE = 4  # replies being built: each holds a block, and the sizes
CHUNKS_LOCATED = 1_000  # in one reply: 175 KiB, if each has RUN_FILE_BYTES
LOAD_PAGE_SEGMENTS = 250  # in one reply: 2 MiB if all have key samples
LOAD_REPORT_POSITIONS = 64  # of keys, in one report of a writer
LOAD_KEY_POSITIONS = 512  # kept per segment
LOAD_KEYS_SEGMENTS = 2_000  # of one container with key samples: up to 20 KiB each
LOAD_KEYS_WINDOW_S = 10.0  # lifetime of key samples

SCRUB_EVERY_S = 7 * 24 * 3600.0  # all stored data is read, to find damage while copies still exist
SCRUB_BYTES_PER_S = 32 * MIB  # its read rate: a tenth of an ordinary disk's
SCRUB_REQUESTED_BYTES_PER_S = 256 * MIB  # if it was requested
SCRUB_YIELD_S = 0.5  # it pauses this long if appends wait, then continues regardless
SCRUB_YIELD_BYTES = 4 * MIB  # and checks for them each time it has read this much
SCRUB_STATE_RECORDS = 200  # of a container's state checked in one iteration of the loop, which appends wait for
SCRUB_KEEP_S = 30.0  # its progress is saved this often: at most this much is repeated after a crash
SCRUB_DAMAGES_REPORTED = 100  # described in one pass; all are counted

# --- threads -------------------------------------------------------------------------------------
# While the loop is busy, a thread that writes the log requests the interpreter after this interval, and again for each
# of a frame's five or six steps. It must be shorter than an iteration of the loop: each iteration briefly releases the
# interpreter, too briefly for a waiting thread, but enough to restart its wait.
THREAD_SWITCH_S = 0.000_1

# --- tables --------------------------------------------------------------------------------------
TABLE_KEY_MAX_BYTES = 8 * KIB
TABLE_FIXED_KEY_MAX_BYTES = 256
TABLE_VALUE_MAX_BYTES = MIB - 8 * KIB
TABLE_BATCH_MAX_BYTES = 32 * MIB
TABLE_PAGE_MAX_ENTRIES = 1_000
TABLE_READ_KEYS = 1_000  # looked up in one iteration of the container's loop, about 4 us each
TABLE_PAGE_MAX_BYTES = 2 * MIB

# --- names ---------------------------------------------------------------------------------------
NAME_MAX_CHARS = 255
PREFIXED_NAME_MAX_CHARS = 250  # of names that get a prefix or suffix: reader groups, key-value tables

# --- controller ----------------------------------------------------------------------------------
LIST_PAGE = 1_000
TXN_LEASE_MIN_MS = 10_000
TXN_LEASE_MAX_MS = 7 * 24 * 3600 * 1000
TXN_MAX_EXECUTION_MS = 30 * 24 * 3600 * 1000
TXN_GRACE_MS = 2_000  # the Rust and Python clients ping exactly at the end of the lease
TXN_TICK_MS = 400  # interval of checks for expired leases
TXN_ID_BLOCK = 10_000  # transaction ids reserved with one write
TXN_COMMIT_BATCH = 100
TXN_BATCH_MAX = 1_000  # transactions committed by one decision: they are merged in one batch
TXN_BEGIN_SEGMENTS = 500  # created by one call that begins several transactions, but at least one's: 10 ms of the loop
TXN_WAIT_S = 5.0  # a call waits at most this long for the end of transactions; each caller then calls again
TXN_COMPLETED_LIST = 500
TXN_COMPLETED_KEEP_MS = 24 * 3600 * 1000  # time range of one table of completed transactions
TXN_COMPLETED_TABLES = 3  # of them kept: with two, a start with a wrong clock could delete recent ones
CHANGE_TRIES = 50  # of a compare-and-set change: each failure means that another change was stored
CHANGE_LONGEST_PAUSE_S = 0.1  # between two of them: they end after some seconds
CONTROLLER_CACHE_RECORDS = 20_000  # 1 KB each; others are read from their table
CONTROLLER_HISTORY_SEGMENTS = 200_000  # of the streams' epochs that the controller caches, 400 bytes each
EPOCHS_RETAINED = 1_000  # before a stream's head: positions there are still valid; older epochs are deleted
EPOCHS_FORGOTTEN_AT_ONCE = 250
WATERMARK_PERIOD_S = 10.0  # Pravega's; between two rounds of watermarks for streams whose writers note times
# checked in one round, some 2 ms each; others follow in the next rounds
WATERMARK_STREAMS_A_ROUND = 1_000
TIME_STEPS_MAX = 64  # of a writer, between two watermarks
WATERMARKS_A_ROUND = 64  # of a stream
WATERMARK_WRITERS_MAX = 10_000  # that note times in one stream concurrently; above it no watermarks are made
SCALING_LOG_ENTRIES = 1_000  # of a stream; the oldest are dropped
SCALING_STREAMS_A_ROUND = 1_000  # checked in one round; others follow in the next rounds
SCALING_SEGMENTS_A_TURN = 200  # checked in one iteration of the loop, some 10 us each, or all of one stream
SCALING_SEGMENTS_A_CHANGE = 1_000  # added to or removed from a stream by one decision: 0.3 s for these, 10 s for 9,000
SCALING_AT_ONCE = 8  # streams being changed concurrently
SCALING_MEASURING_SHARE = 0.2  # maximum fraction of time spent waiting for load reports
SCALING_SCAN_S = 10.0  # between two scans for streams without load that have too many segments
SCALING_SCAN_STREAMS = 1_000  # checked per scan, some 10 us each
SCALING_SCAN_PAGE = 100  # of them read at a time
SCALING_WATCHED = 10_000  # of them remembered
RETENTION_PERIOD_S = 10.0  # between two rounds over streams with a retention policy; Pravega's is 30 minutes
RETENTION_CLOCK_S = 1.0  # between two comparisons of the wall clock with the monotonic clock
RETENTION_CLOCK_PIECES = 1_000  # of their differences that are remembered
RETENTION_SETTLE_S = 60.0  # after a start nothing is truncated by time: a wrong clock may be corrected meanwhile
RETENTION_STREAMS_A_ROUND = 1_000  # checked in one round; others follow in the next rounds
RETENTION_AT_ONCE = 8  # of them concurrently, some 5 ms each, and more if data is truncated
RETENTION_WAIT_S = 20.0  # per stream and round: others don't wait for a blocked stream
RETENTION_NAMES_MAX = 100_000  # bookmarks and slices of a scope; above it, retention of its streams pauses
RETENTION_HOLDERS_REPORTED = 100  # listed subscribers and cuts that delay a stream's truncation
RETENTION_NAMES_A_TURN = 50  # of them decoded in one iteration of the loop, some 20 us each
LAG_QUESTIONS = 5_000  # time queries to the segments that a reader group is reading, some 50 us each
LAG_GROUPS = 10_000  # checked for those that read a stream
LAG_REPLACED = 50  # former segments of a stream, reported with the lag of its groups
METRICS_CACHED_S = 1.0  # scrapes within it get the same figures
METRICS_STREAMS = 100  # reported by name, the busiest; a handful of samples each
METRICS_GROUPS = 200  # streams of reader groups reported by name, those with the most lag
METRICS_STREAMS_MEASURED = 20_000  # counted, some 10 us each
METRICS_GROUPS_MEASURED = 1_000  # whose lag is measured, some ms each
METRICS_PAGE = 200  # records in one iteration of the loop
METRICS_AT_ONCE = 4  # streams or groups measured concurrently
METRICS_NAMES_S = 2.0  # for the names of streams and groups; Prometheus waits for 10 s in all
METRICS_LAGS_S = 4.0  # for lags
METRICS_CACHE_S = 2.0  # for the streams' stored sizes
STREAM_MAX_SEGMENTS = 10_000  # keeps a stream's record well below a table value's limit; also for key-value tables
STREAM_MAX_TAGS = 128
TAG_MAX_CHARS = 256
READER_GROUP_MAX_BYTES = 1000 * KIB  # a reader group's record, with all its stream cuts: one table value
READER_GROUP_ROLLOVER_BYTES = 4 * MIB  # of its stream, which is read from its last snapshot onwards
WORKFLOW_WAIT_S = 120.0  # a reply waits this long for its workflow, which continues after that
WORKFLOW_RETRY_MAX_S = 10.0  # longest pause between two tries of a workflow while the store is unavailable
SEGMENT_CALL_ATTEMPTS = 4
SEGMENT_CALLS_AT_ONCE = 128  # of a controller at one store: they share frames of logs; more would block the loop
CONVOY_FEW = 8  # workflows of a kind that start immediately; further ones start together, to share frames of the logs,
CONVOY_WAIT_S = 0.3  # after waiting at most this long for earlier ones: a container may be between two servers

# --- REST ----------------------------------------------------------------------------------------
REST_BODY_MAX_BYTES = 256 * KIB  # a stream with the most and longest tags takes less
REST_BODY_TIMEOUT_S = 10.0
REST_HEAD_MAX_BYTES = 16 * KIB  # request line and headers
REST_SOCKET_BYTES = 32 * KIB  # of one connection in the kernel, which uses twice that; and of read-ahead for TLS
REST_PORTION_BYTES = 16 * KIB  # of input, read and handled at a time,
REST_PORTION_LINES = 64  # or this many lines, each a header or half a chunk: 20 to 40 us
REST_STEPS_A_TURN = 2  # such portions in one iteration of the loop, each with at most one request, about 0.5 ms
REST_MESSAGE_MAX_CHARS = 1_000  # of an error's text, which may quote the request
REST_LIST_PAGE = 200  # records examined in one iteration of the loop, which appends wait for
REST_PAGES_AT_ONCE = 2  # of lists, being fetched and encoded: about 10 ms each, in parts
REST_CONNECTIONS_MAX = 1_000  # above it the connection idle longest is closed for a new one
REST_CONNECTIONS_OF_ADDRESS = 500
REST_CONNECTIONS_EXTRA = 50  # above these, when all are busy: health requests are answered, others get 503
REST_HEAD_TIMEOUT_S = 10.0  # from connecting, or from the previous response, until a request's head is complete

# --- the page ------------------------------------------------------------------------------------
PAGE_READERS = 64  # concurrent event streams to browsers: an address gets half of the free ones
OWN_CLIENTS = 64  # of REST callers, in this process, closed after being idle for
OWN_CLIENT_IDLE_S = 60.0
PAGE_ANSWER_S = 15.0  # request timeout of clients of their own server
PAGE_BATCH_S = 0.04  # interval of full batches of events to a browser, shorter for smaller batches,
PAGE_BATCH_LEAST_S = 0.015  # and at least this, which is enough for videos
PAGE_BATCH_EVENTS = 200  # in a batch; others are counted
PAGE_BATCH_BYTES = 1 * MIB  # of payload, above which no event is added
PAGE_BEAT_S = 2.0  # interval of messages to a browser without new events
PAGE_TAIL_BYTES_A_S = 16 * MIB  # read at a tail for a browser; skipped events are reported to it
PAGE_TAIL_SEGMENTS = 1_000  # of a stream whose tail a browser shows
PAGE_TEXT_BYTES = 64 * KIB  # of an event's payload
PAGE_PICTURE_BYTES = 2 * MIB
PAGE_PIECE_BYTES = 128 * KIB  # read at a time from each segment being played
PAGE_PIECES_BYTES = 8 * MIB  # of all of them together, but at least:
PAGE_PIECE_LEAST_BYTES = 8 * KIB
PAGE_BEHIND_S = 0.5  # playback this late skips events
PAGE_RATES_S = 1.0  # minimum age of the streams' rates before they are collected again
PAGE_QUERIES_AT_ONCE = 16  # segments queried for their write times concurrently
PAGE_CUT_SEGMENTS = 256  # of a cut, queried for the time of the cut
PAGE_INDEX_S = 2.0  # wait for the indexing of event times before progress is reported
PAGE_INDEXED_AT_ONCE = 4  # streams, by one caller
PAGE_MOMENTS_PAGES = 16  # of a segment's time index, read for a chart, for each of its clocks
PAGE_STEPS = 16_000  # time steps in a chart, over all segments, but at least 20 of each

# --- notebooks -----------------------------------------------------------------------------------
NOTEBOOK_ASKS_S = 5.0  # timeout for a reader group's display
NOTEBOOK_READERS = 8  # concurrent event readers, and queries, of one widget's players
NOTEBOOK_AHEAD = 2  # batches sent to a browser that it hasn't acknowledged
NOTEBOOK_SILENCE_S = 60.0  # a browser that acknowledges none for this long is considered closed
NOTEBOOK_SEGMENTS = 5_000  # drawn on a player's bar, the newest
NOTEBOOK_STREAM_CUTS = 200  # bookmarks there, and slices

# --- gRPC ----------------------------------------------------------------------------------------
RPC_CONNECTIONS_MAX = 1_000
RPC_STREAMS_MAX = 100  # calls in flight on one connection; clients hold back further ones
RPC_AT_ONCE = 1_000  # calls in flight in total; an address that has half of the free ones gets UNAVAILABLE
RPC_REFUSED_AT_ONCE = 1_000  # such refusals in flight; above it every call gets RESOURCE_EXHAUSTED
RPC_MESSAGE_MAX_BYTES = 2 * MIB  # twice the largest record stored from one
RPC_SENT_AHEAD_BYTES = 16 * KIB  # of a call before its request is read: gRPC buffers them, 16 MiB for all calls
RPC_RECEIVING_BYTES = 64 * MIB  # for incoming requests, each counted as the largest: 32 at a time
RPC_WORK_BYTES = 64 * MIB  # for requests being processed, with the objects built from them:
RPC_WORK_TIMES = 10  # this many times the request, since a stream cut's 14 bytes become two numbers in a dict;
RPC_SMALL_BYTES = 8 * KIB  # smaller ones don't count: for all calls they take 8 MiB, and 80 while processed
RPC_MEMORY_TIMEOUT_S = 10.0  # a call that gets no memory within it is refused as UNAVAILABLE
RPC_PARTS_MAX = 2 * STREAM_MAX_SEGMENTS  # of one kind in a request: a stream cut may span two full epochs
RPC_PORTION_BYTES = 64 * KIB  # of a request, parsed in one iteration of the loop,
RPC_PORTION_PARTS = 2_000  # or this many fields, which are counted first: about 1 ms
RPC_ENTRIES_A_TURN = 2_500  # of a reader group's stream cuts, each converted to a number in a dict or message: 1 ms
RPC_MESSAGES_A_TURN = 250  # of segments in a reply, 4 us each
CUT_QUICK_SEGMENTS = 200  # of a stream: with more, its cuts are compared in a thread, about 15 us each
RPC_METADATA_MAX_BYTES = 24 * KIB  # of one call: the largest authorization, plus other headers
RPC_MESSAGE_TIMEOUT_S = 5.0  # from a call's start until its request has arrived: 32 silent calls use up the budget
RPC_STARTS_A_TURN = 4  # calls started in one iteration of the loop, about 0.3 ms each
RPC_IDLE_S = 60.0  # a connection without calls is closed, to make way for others; clients reconnect automatically
RPC_KEEPALIVE_S = 60.0  # of silence, after which a peer is pinged
RPC_KEEPALIVE_TIMEOUT_S = 20.0  # for its answer

# --- between the servers of a cluster ------------------------------------------------------------
PEER_CONNECT_S = 2.0
PEER_SILENCE_S = 5.0  # after which a store that sends nothing, not even keep-alives, counts as unreachable
PEER_ANSWER_S = 30.0  # of a live store: its log may have to wait
FORWARD_CHANNELS = RPC_AT_ONCE // RPC_STREAMS_MAX  # connections to the active controller: enough for all calls here
FORWARD_KEEPALIVE_S = 3.0  # of silence before a ping, and for its answer
FORWARD_REST_AT_ONCE = 100  # requests being forwarded to the active controller, with a timeout of:
FORWARD_REST_SILENCE_S = 300.0  # deleting a scope sends nothing before it is done

# --- a log that is a chain of objects ------------------------------------------------------------
CHAIN_TRY_S = 5.0  # timeout of a call to the store of a log, plus a second
CHAIN_TRY_BYTES_PER_S = MIB  # for each of these; the call is retried, with pauses
CHAIN_LONGEST_PAUSE_S = 1.0  # of at most this
CHAIN_READ_AHEAD = 32  # objects, while the end of a log is searched
CHAIN_AHEAD_BYTES = 32 * MIB  # of frames waiting to be applied to the state
CHAIN_BRAKE = 24  # numbers ahead of a live owner: a seal there stops an owner that wins the race at the end
CHAIN_SLOW_S = 0.010  # a slower frame is followed by a pause
CHAIN_PAUSE_PART, CHAIN_PAUSE_S = 1 / 16, 0.005  # fraction of the frame's time, and maximum
CHAIN_CLOSE_S = 5.0  # wait for a frame in progress when a log is closed
CHAIN_OBJECT_MOST_BYTES = 22 * MIB  # the largest: a frame (4 MiB), one more request (17 MiB), and their checksums
CHAIN_DELETED_AT_ONCE = 500  # names in one call

# --- records, membership and placement -----------------------------------------------------------
CLUSTER_CALL_S = 2.0  # timeout of a call to the registry
CLUSTER_RECORD_TRIES = 8  # of a change to a container's record, 1 s in total if the store answers
CLUSTER_RECORDS_AT_ONCE = 32  # read concurrently
CLUSTER_BEAT_S = 1.0  # interval of a server's heartbeats and of its checks for others
CLUSTER_LEASE_S = 2.0  # a server answers reads at most this long after it started a heartbeat; at least two intervals
CLUSTER_DEAD_S = 3.0  # without a heartbeat, a server is dead: a quarter more than the lease, because clocks drift
CLUSTER_CALLS_AT_ONCE = 8  # concurrent queries about single servers
CLUSTER_VALUE_S = 5.0  # interval of reading the servers' values; their heartbeats are checked more often
CLUSTER_FORGET_S = 24 * 3600.0  # a dead server's entry is deleted after this,
CLUSTER_DEAD_RETAINED = 100  # or if there are more of them: a server in a crash loop leaves an entry with each start
CLUSTER_LEAVE_TRIES = 3  # to remove its own entry; if all fail, the others wait until it counts as dead
CLUSTER_SETTLE_S = 3.0  # without a change of servers, before containers that never had an owner are claimed
CLUSTER_STABLE_S = 30.0  # the same, before a container is moved for balance
CLUSTER_CLAIM_DELAY_S = 1.0  # for each candidate that ranks higher for a container without an owner
CLUSTER_ARRIVAL_S = 10.0  # other servers may claim a container after this if its designated server hasn't
CLUSTER_TAKES_AT_ONCE = 8  # containers that a server opens concurrently, each with frames that wait
CLUSTER_FAILED_TAKES = 3  # in a row, before a server passes on a container that it can't open
CLUSTER_RETAKE_S = 5.0  # the longest pause before that server's next try
CLUSTER_HANDOVER_POLL_S = 0.05  # polling interval for the record of a container that is about to change hands
CLUSTER_ORPHAN_POLL_S = 0.1  # polling interval for all records while a dead server's containers are unclaimed
CLUSTER_ANNOUNCE_S = 1.5  # from announcing a step to taking it: until every server has seen it
CLUSTER_HAND_OVER_S = 60.0  # for all steps before a container is closed for its handover
CLUSTER_START_S = 60.0  # for a new server to see a controller in its cluster
CLUSTER_DRAIN_S = 25.0  # for a server to stop, even after faults: orchestrators kill after 30 s
CLUSTER_LEAVE_S = 8.0  # of these, for closing containers that weren't handed over,
CLUSTER_BREAK_S = 6.0  # and for the rest once it no longer waits for the store
CLUSTER_STOP_S = 28.0  # then the process exits unconditionally
CLUSTER_WHERE_S = 10.0  # that a query for a segment's server waits while its container is unowned,
CLUSTER_WHERE_AT_ONCE = 500  # such queries, half of all calls in flight; further ones are refused,
CLUSTER_ROUTE_POLL_S = 0.05  # and polling interval meanwhile
CLUSTER_RING_S = 0.5  # for a store to accept a connection, before its address is reported

# --- inspection and cleanup ----------------------------------------------------------------------
CLUSTER_LOGS_AT_ONCE = 8  # containers whose objects are listed concurrently
JANITOR_EACH_S = 24 * 3600.0  # between two cleanups, in the server that has container 0
JANITOR_FIRST_S = 3600.0  # before the first: a server in a crash loop cleans up nothing
JANITOR_OLDER_S = 24 * 3600.0  # younger objects are never deleted,
JANITOR_LEAST_OLDER_S = 3600.0  # and the age limit can't be set lower than this
JANITOR_PAUSE_S = 0.2  # after each page of a listing
JANITOR_DELETED_AT_ONCE = 500  # names in one call

# --- migrations ----------------------------------------------------------------------------------
MIGRATION_PAUSE_S = 60.0  # default limit of the writers' pause,
MIGRATION_PAUSE_MAX_S = 3600.0  # and its maximum
MIGRATION_REFRESH_S = 300.0  # for new snapshots of all containers
MIGRATION_PASSES = 10  # over changed data, before writers are paused unconditionally,
MIGRATION_REMAINDER_BYTES = 64 * MIB  # or once a pass copied at most this much
MIGRATION_COPIES_AT_ONCE = 4  # chunks, each of them in memory
MIGRATION_ROWS = 10_000  # of a state, written in one transaction
MIGRATION_LATE_S = 10.0  # for the mark of a server that didn't answer
MIGRATION_TRIES = 5  # to read a snapshot while a server replaces it
MIGRATION_LOCK_BEAT_S = 2.0  # heartbeat of a migration in the store: GCS accepts one write a second
MIGRATION_LOCK_DEAD_S = 10.0  # without a heartbeat, by the next migration's clock, it counts as ended

# --- KEDA ----------------------------------------------------------------------------------------
SCALER_METADATA_MAX_CHARS = 8 * KIB  # of a trigger, names and values
SCALER_POLL_S = 0.25  # polling interval for watched streams; the result is shared with all callers meanwhile
SCALER_AT_ONCE = 4  # queries for a reader group's lag; a silent store delays others when it has all of them
SCALER_CACHED = 1_000  # streams and groups with cached results, a second's work or less
SCALER_WATCHES_MAX = 200  # StreamIsActive calls in flight on all connections, and on one,
SCALER_WATCHES_OF_CONNECTION = 50  # because KEDA sends all queries over one, at most RPC_STREAMS_MAX at a time
SCALER_PERMIT_S = 10.0  # after which a watch's credentials are checked again

# --- access control ------------------------------------------------------------------------------
LOGINS_AT_ONCE = 2  # passwords being checked; each costs 0.1 to 0.4 s of a core, depending on the machine
LOGIN_FAILED_S = 0.2  # until a failed SCRAM login, which costs the server nothing, is answered
LOGINS_WAITING = 128  # or waiting to be, at most half of them from one address; addresses in rotation
LOGINS_CACHED = 1_000  # cached results, so that not every request needs a check
TOKENS_CACHED = 10_000  # delegation tokens whose signature was verified
AUTHORIZATION_MAX_CHARS = 16_384  # of a request's authorization header; longer ones are invalid
BEARER_KEYS_REFRESH_S = 10.0  # a key set isn't fetched again sooner, even if a token names an unknown key
BEARER_KEYS_AGE_S = 300.0  # and is fetched again when it is older than this
TLS_HANDSHAKES_A_TURN = 1  # started by each port in an iteration of the loop: 0.5 ms with ECDSA, 3 ms with RSA-3072
TLS_HANDSHAKE_S = 20.0  # a slower peer is disconnected

# --- quotas --------------------------------------------------------------------------------------
QUOTAS_MAX = 1_000  # of scopes and users: each server gets all of them every second
QUOTA_SHARE_S = 1.0  # interval at which servers report their use and get their shares
QUOTA_SERVER_S = 5.0  # a server that hasn't reported for this long doesn't get a share
QUOTA_IDLE_SHARE = 0.1  # of a rate, divided evenly among the servers: the rest is divided by use
QUOTA_BURST_S = 1.0  # worth of a rate that an idle owner may use at once
QUOTA_WAIT_MAX_S = 10.0  # of one peer, for one request: clients take a server for dead after 50 s without replies
QUOTA_COUNTED_S = 1.0  # minimum time between two counts of a scope's streams
QUOTA_CREATED_S = 10.0  # a stream counts for so long before its record must exist
QUOTA_STORED_S = 10.0  # minimum time between two measurements of a scope's stored bytes,
QUOTA_STORED_REST = 10  # and this times as long as one takes

# --- audit ---------------------------------------------------------------------------------------
AUDIT_QUEUE = 1_000  # records waiting to be written; above it administrative operations are refused,
AUDIT_NOTES = 20  # and logins and refusals recorded a second: others are counted; half the queue is for operations
AUDIT_BATCH = 100  # records written together
AUDIT_TEXT_CHARS = 2_000  # of a request, a detail or a subject in a record
AUDIT_LOGINS = 10_000  # users and addresses whose login was recorded,
AUDIT_LOGIN_S = 3_600.0  # not again for so long: callers log in with each request

# --- shutdown ------------------------------------------------------------------------------------
STOP_PORT_S = 3.0  # for each port, and each client of other servers, once calls have had their second
STOP_STORE_S = 90.0  # for a data folder to store queued appends, and seals, which read all of the states
STOP_S = 115.0  # for the process to end in any case: `deploy/` kills it after two minutes

# --- client --------------------------------------------------------------------------------------
WRITER_BLOCK_BYTES = 1 * MIB  # at most one append (plus one event)
WRITER_PENDING_BYTES = 32 * MIB  # unacknowledged bytes of one writer; above it writing waits
READ_AHEAD_BYTES = 8 * MIB  # in flight for one segment reader
SCHEMA_MAX_BYTES = 512 * KIB  # one stored schema; half of a table value's limit
SCHEMA_MAX_VERSIONS = 1_000  # of one stream; keeps the list of them well below a table value's limit
SCHEMA_CACHE_DECODERS = 256  # of one reader, for the schemas of its events
BYTE_APPEND_BYTES = 8 * MIB  # one append of a byte stream: a write up to this size is stored atomically
BYTE_JOIN_BYTES = 1 * MIB  # smaller waiting pieces are joined up to this size
BYTE_UNDER_WAY_BYTES = 16 * MIB  # in flight for one byte stream's writer: two of the largest appends
INDEX_RECORD_MAX_BYTES = 64 * KIB  # of a stream that nadi's writer creates: READ_WHOLE_BYTES
INDEX_FIELDS = 100  # of an index record, as for official writers
STATE_UPDATE_ATTEMPTS = 1_000  # of one update of shared state while other updates come first
TABLE_ITERATOR_PAGE = 100  # entries requested together from each partition of a key-value table
SEGMENT_ENDS_CACHED = 20_000  # sealed segments whose ends one planner remembers, about 300 bytes each
BOOKMARK_NOTE_MAX_CHARS = 4_096
BOOKMARK_MAX_TAGS = 128
READ_AHEAD_OF_ALL_BYTES = 64 * MIB  # of one reader, over all its segments
READ_JOINED_BYTES = 64 * KIB  # small waiting blocks are returned together, up to this size
SKIPPED_DAMAGES_MAX = 1_000  # the latest ones that a reader with on_damage="skip" remembers; all are logged
READER_GROUP_CHECKPOINTS = 8  # complete ones that a group remembers: each holds all segments' positions

# --- Spark ---------------------------------------------------------------------------------------
SPARK_STREAMS = 1_000  # read by one query: each offset holds a cut of each
SPARK_STREAM_POLL_S = 2.0  # interval at which a query looks for new streams
SPARK_LAG_EVERY_S = 1.0  # interval of lag measurements of an idle query
SPARK_COMPARED_AT_ONCE = 2_000_000  # hashes held while two outputs are compared
SPARK_MIRRORED_BYTES = 256 * MIB  # of a checkpoint; its mirror holds them in memory
SPARK_CUTOVER_EVERY_S = 1.0  # interval at which a query checks for a cutover
SPARK_STREAMS_AT_ONCE = 16  # of them, queried concurrently
SCAN_SPLITS = 10_000  # of one scan, each a few KiB with its pieces
SPARK_FOLLOWED_STREAMS = 100  # whose segments one loop counts to request executors: a query each, every few seconds

# --- overrides from the environment ---------------------------------------------------------------
_BLOCK_BYTES = 4096  # of a disk, as `segmentstore.tier1.layout` has it
_LEAST = {"RUN_LEAST_BYTES": _BLOCK_BYTES, "LOG_FILE_BYTES": 2 * _BLOCK_BYTES, "LOG_FIRST_FILE_BYTES": 2 * _BLOCK_BYTES}
_WHOLE_BLOCKS = frozenset({"LOG_FILE_BYTES", "LOG_FIRST_FILE_BYTES"})


def override(limits: dict[str, Any], text: str) -> None:
    """Set limits from `name=value,...`; ValueError for an unknown limit or an invalid value.

    >>> limits = {"QUEUE_MAX_BYTES": 10, "CHUNK_FLUSH_AGE_S": 10.0}
    >>> override(limits, "chunk_flush_age_s=0.5,queue_max_bytes=7")
    >>> limits
    {'QUEUE_MAX_BYTES': 7, 'CHUNK_FLUSH_AGE_S': 0.5}
    """
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        name = name.strip().upper()
        if not isinstance(limits.get(name), int | float):
            raise ValueError(f"NADI_LIMITS: unknown limit {name}: the limits are in nadi/limits/__init__.py")
        kind = type(limits[name])
        try:
            number = kind(value)
        except ValueError:
            number = kind(0)
        least = _LEAST.get(name, 0)
        unit = _BLOCK_BYTES if name in _WHOLE_BLOCKS else 0
        if not 0 < number < math.inf or number < least or (unit and number % unit):
            expected = f"multiple of {unit}" if unit else "whole number" if kind is int else "number"
            bound = f"not below {least}" if least else "above 0"
            raise ValueError(
                f"NADI_LIMITS: {name} can't be {value!r}: use a {expected} {bound}, such as {limits[name]}"
            )
        limits[name] = number


override(globals(), os.environ.get("NADI_LIMITS", ""))  # before any module imports a limit
