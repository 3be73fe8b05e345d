"""All of nadi's limits in one place, each with its unit and the reason for its size; those of what is done with streams
are in `processing`.

Tests make some of them small for their own server, through its environment:
NADI_LIMITS="chunk_flush_age_s=0.2,chunk_flush_bytes=65536".
"""

from __future__ import annotations

import math
import os
from typing import Any

from nadi.limits.processing import *  # noqa: F403 - they are limits like all others, and set like them
from nadi.limits.processing import KIB, MIB

# --- wire protocol -------------------------------------------------------------------------------
# Both official clients refuse payloads over 0xFFFFFF, but a Java batch write may build an append slightly
# larger than that. So the server accepts up to 17 MiB and never sends more than 0xFFFFFF.
MAX_FRAME_SENT_BYTES = 0x00FF_FFFF
MAX_FRAME_RECEIVED_BYTES = 17 * MIB
MAX_EVENT_BYTES = 8 * MIB  # larger events take the transient-segment path
FIELD_PATH_NAMES = 32  # of the path to a field of an event: names within each other
MAX_LARGE_EVENT_BYTES = 1024 * MIB
READ_REPLY_MAX_BYTES = 2 * MIB  # the most that official servers send in one SegmentRead
READ_WHOLE_BYTES = 64 * KIB  # up to this a read gets all it asks for: official index readers go by one reply

# --- peers of the segment store ------------------------------------------------------------------
PEERS_BYTES = 256 * MIB  # for all peers together: half for data received but not handled, half for data not yet taken
PEERS_SHARE = 4  # one connection may hold this part of what is free: 24 MiB of 128 if nobody else holds any
PEERS_LITTLE_BYTES = 2 * MIB  # connections that hold no more share the last quarter: a block of events, or a reply
PEERS_LEAST_BYTES = 32 * KIB  # which everybody may hold, each way, even when nothing is free
CONNECTIONS_MAX = 4_096  # at the 64 KiB that everybody may hold, they take no more than another budget
CONNECTIONS_OF_ADDRESS = 2_048  # from one address: official writers have one for each segment
FILES_FOR_STORAGE = 256  # of the process's open files, reserved from the doors
UNKNOWN_PEER_FRAME_BYTES = 64 * KIB  # before the first valid token, or the first command if no token is required
UNKNOWN_PEER_S = 60.0  # from connecting until then; clients connect when they have something to ask
FRAME_TIMEOUT_S = 30.0  # from a frame's first byte to its last one,
FRAME_LEAST_BYTES_S = 128 * KIB  # and a second more for so many bytes of it: the largest event may take 94 s
SEND_TIMEOUT_S = 60.0  # within which a peer must take some of what is sent to it; a client's longest pause
SEND_PROGRESS_BYTES = 64 * KIB  # what counts as some, if more is left
SEND_HIGH_WATER_BYTES = 256 * KIB  # not taken by the network yet; past it no reply is built
SEND_LOW_WATER_BYTES = 64 * KIB  # building resumes when no more than this is left
CONNECTION_REPLIES_BYTES = 16 * MIB  # being fetched or sent for one connection's reads: twice what one reads ahead
CONNECTION_UNSENT_BYTES = 4 * MIB  # of short answers; past it nothing is read from the connection
CONNECTION_RECEIVED_BYTES = 24 * MIB  # held of one connection: the largest frame, and some to work on
CONNECTION_APPENDS_WAITING = 500  # in a container's queue: a frame's worth
CONNECTION_SESSIONS = 20_000  # writers set up on one connection; official clients stop at 2,000
CONNECTION_COMMANDS_WAITING = 1_000  # neither appends nor reads,
CONNECTION_COMMANDS_AT_ONCE = 200  # and handled at one time, if their replies are small,
COMMANDS_UNDER_WAY = 4_000  # as long as there are no more of all connections, some 3 KB each; one may always be
CONNECTION_READS_WAITING = 1_000  # long polls one connection may hold
COMMANDS_AT_ONCE = 48  # taken from one connection as they arrive; with more it waits for its turn
COMMANDS_OF_CROWD = 2  # instead, once others have had a turn: a peer with little to say doesn't wait behind them
COMMANDS_A_TURN = 50  # of all waiting connections, in one turn of the loop: about 20 us each, 60 on a busy machine
READ_REPLY_FIRST_BYTES = 128 * KIB  # a connection's first reply; each one taken lets the next be twice as large
READS_AT_ONCE = 4  # small ones, or a large one, answered to one connection before it waits for its turn
READ_WEIGHT_BYTES = 4 * KIB  # of an answer count as one command: they are copied, to fresh memory
WAKES_A_TURN = 100  # of waiters for a segment's tail, or for room
PATROL_S = 1.0  # how often connections are checked for anything that takes too long
ACCEPTS_A_TURN = 10  # new connections, about 0.2 ms each
FETCHES_AT_ONCE = 16  # from the log or tier 2, of all readers: up to 4 MiB each
READ_AHEAD_FETCHES = 8  # of them; past it nothing is fetched that nobody has asked for yet
# in one command, some 10 us each: a reader group's state has one for each segment of a stream
LIST_MAX_ENTRIES = 25_000

# --- segment store -------------------------------------------------------------------------------
RECEIVE_BUFFER_BYTES = 256 * KIB
RECEIVE_BUFFER_LEAST_BYTES = 16 * KIB  # initially, of a server's connection: most send little
APPEND_SESSIONS_KEPT = 1_000  # of one connection; past it idle ones are dropped, since nobody ends one:
APPEND_SESSION_IDLE_S = 600.0  # a writer idle for this long sets itself up again,
APPEND_SESSION_GONE_S = 60.0  # and one whose segment is gone, as a transaction's is, has no more to say
QUEUE_MAX_BYTES = 64 * MIB  # appends waiting in one container; past it connections stop reading
FRAME_MAX_BYTES = 4 * MIB  # one durable-log frame: large enough for disk speed, small enough for p99
FRAME_MAX_REQUESTS = 500  # in one such frame: about 15 us each, during which the loop does nothing else
CACHE_MAX_BYTES = 192 * MIB  # blocks kept in memory for readers, over all containers
LOG_FILE_BYTES = 64 * MIB  # one tier-1 file
LOG_FIRST_FILE_BYTES = 8 * MIB  # the first one an owner fills with zeros; each further one is twice as large
LOG_SPARE_FILES = 4  # truncated files kept for recycling
LOG_KEPT_BYTES = 4 * MIB  # a file reserved for a full disk: about 1,000 frames of truncations, deletions and the like
DISK_KEPT_FREE_BYTES = 64 * MIB  # of its disk, the log leaves this for the state and the chunks that empty the log,
DISK_KEPT_FREE_PART = 16  # but no more than a sixteenth of the disk
LOG_QUICK_FRAME_BYTES = 64 * KIB  # a frame up to it is written in the loop's thread, if that takes
LOG_QUICK_WRITE_S = 0.000_5  # no longer than this on average: waking another thread and being woken takes as long
LOG_QUICK_PAUSE_S = 0.1  # otherwise the writer thread gets all frames until this has passed
LOG_QUICK_LONGEST_PAUSE_S = 30.0  # and then twice as long each time the disk is slow again
RUN_LEAST_BYTES = 128 * KIB  # of one segment in one frame: from here on they go to a file beside the log,
RUN_FILE_BYTES = 32 * MIB  # which becomes a chunk of up to this size
RUN_CARRY_BYTES = 256 * KIB  # of small appends between large ones that it takes along
RUN_FILES_OPEN = 16  # of one container, of as many segments; all their room is allocated
RUN_FILES_READY = 2  # allocated in advance, once there is a large run
RUN_IDLE_S = 1.0  # a file that was not used for this long makes place for another segment's
RUN_WRITERS = 4  # files of one container written at a time
LOG_MAX_BYTES = 4 * 1024 * MIB  # un-tiered log of one container; past it writers wait for tier 2
CHUNK_FLUSH_BYTES = 8 * MIB  # a segment is moved to tier 2 when this much waits
CHUNK_MAX_BYTES = 64 * MIB  # compaction builds chunks up to this
CHUNK_FLUSH_AGE_S = 10.0  # or when its oldest bytes are this old
STORAGE_WRITER_TICK_S = 0.25  # how often the storage writer looks for what is due
STORAGE_WRITER_RUNS = 4  # moved to tier 2 at a time, each in memory meanwhile: a quarter of the largest chunk
CHUNK_GARBAGE_DELAY_S = 30.0  # readers that hold the name of a replaced chunk finish within this time
CHECKPOINT_INTERVAL_S = 2.0  # state is written behind to LMDB this often
CHECKPOINT_DIRTY_RECORDS = 5_000  # or when this many records wait: gathering them stops everything else for 50 ms
COURTESY_SLOW_TIMES = 1.5  # if small frames take so much longer than at rest, background work pauses,
COURTESY_MOST_TIMES = 4.0  # for up to so many times as long as it has worked,
COURTESY_LONGEST_S = 0.25  # and no longer than this at a time
CHECKPOINT_ROWS = 100  # written in one go, about 4 us each, during which the loop gets half of the interpreter;
CHECKPOINT_REST_S = 0.001  # then the thread rests this long,
CHECKPOINT_RESTS = 1_000  # but no more often than this in one checkpoint
RECORDS_IN_MEMORY = 10_000  # of one container, idle ones; 1 KB each, and loaded again in 32 us
RECORD_ATTRIBUTES_IN_MEMORY = 1_000  # of one segment, mostly writers' numbers; more are looked up on disk
STATE_MAP_BYTES = 256 * MIB  # address space for a container's state at first; doubled when it is full
STATE_CHANGES_MAX_BYTES = 32 * MIB  # of the state kept in memory for its next snapshot; past it a full one is made
SNAPSHOT_INTERVAL_S = 10.0  # a snapshot of what changed in the state goes to tier 2 this often
SNAPSHOT_LOG_BYTES = 8 * MIB  # or when the log has grown by this much, but not more often than checkpoints
SNAPSHOT_DELTAS = 64  # then a full one is made again; also when they reach a quarter of its size
SNAPSHOT_PART_BYTES = 8 * MIB  # of a full one in one object, before compression
SNAPSHOT_READ_AHEAD = 4  # parts, while a state is restored from one
VERIFIED_ROWS = 500  # of a full one, before it counts: checked in one go, half a microsecond each
SNAPSHOT_STOP_S = 5.0  # a clean stop waits this long for its last one; otherwise the next start replays the log
SNAPSHOT_STOP_BYTES = 16 * MIB  # the largest state of which it still makes a full one, in a tenth of a second
SNAPSHOT_RETRY_MAX_S = 60.0  # longest pause between two tries while tier 2 is away
LOCATE_EXTENTS = 1_300  # searched for an event's start, before and after: ten times what the largest event has
LOCATE_BLOCK_BYTES = 128 * KIB  # read at a time to find one
WALKS_AT_ONCE = 4  # searches for events' starts: each holds a block
HOPS_A_TURN = 500  # over events, by each walk in one turn of the loop: about 0.15 us each,
HOPS_A_COMMAND = 120  # this many cost as much as one command
DAMAGE_LISTED = 1_000  # damaged places that a container lists; readers learn of all
TIME_INDEX_MS = 1_000  # a segment's time index has at most one entry in it
TIME_INDEX_BYTES = 4 * KIB  # and one entry, of about 40 bytes on disk, for this many: it stays about 1 % of the data
TIME_INDEX_MOST_MS = 10_000  # or one entry in this time, if fewer bytes arrive
MOMENTS_AT_ONCE = 4_000  # of these entries in one reply
TIMES_INDEXED_AT_ONCE = 4_000  # stretches of events whose times are added to the index in one command
EVENT_TIME_MIN, EVENT_TIME_MAX = -(1 << 62), 1 << 62  # in whichever unit
WATERMARKS_AT_ONCE = 16_384  # that a task of Spark's keeps of those of a segment
TIME_INDEX_TRIM_ENTRIES = 1_000  # of a truncated segment, deleted with one checkpoint

LOAD_SEGMENTS = 10_000  # measured in one container; 200 bytes and 0.3 us a second each
EVENT_SIZES_LISTED = 100_000  # in one reply: 400 KiB at most, and a tenth where they are alike
EVENT_SIZES_SCANNED_BYTES = 8 * MIB  # looked at for one reply
EVENT_SIZES_A_TURN = 1_000  # of them found in one turn of the loop, 0.15 us each; those that are alike hardly count
EVENT_SIZES_AT_ONCE = 4  # replies that are being put together: each holds a block, and the sizes
CHUNKS_LOCATED = 1_000  # in one reply: 300 KiB, if each is of CHUNK_MAX_BYTES
LOAD_PAGE_SEGMENTS = 250  # in one reply: 2 MiB if all have their samples of keys
LOAD_REPORT_POSITIONS = 64  # of keys, in one report of a writer
LOAD_KEY_POSITIONS = 512  # known of a segment
LOAD_KEYS_SEGMENTS = 2_000  # of one container that samples of keys are kept for: up to 20 KiB each
LOAD_KEYS_WINDOW_S = 10.0  # reports of keys count for this long

SCRUB_EVERY_S = 7 * 24 * 3600.0  # all that is stored is read, to find damage while copies still exist
SCRUB_BYTES_PER_S = 32 * MIB  # read by it: a tenth of what an ordinary disk delivers
SCRUB_ASKED_BYTES_PER_S = 256 * MIB  # while somebody waits for it
SCRUB_YIELD_S = 0.5  # it pauses this long if appends wait, then continues regardless
SCRUB_YIELD_BYTES = 4 * MIB  # and checks for them each time it has read this much
SCRUB_STATE_RECORDS = 200  # of a container's state checked in one turn of the loop, which appends wait for
SCRUB_KEEP_S = 30.0  # its progress is saved this often: that much is read again after a crash
SCRUB_DAMAGES_TOLD = 100  # described in one pass; all are counted

# --- threads -------------------------------------------------------------------------------------
# While the loop is busy, a thread that writes the log asks for the interpreter after this long, and again for each of a
# frame's five or six steps. It must be less than a turn of the loop takes: each turn briefly releases the interpreter,
# which a waiting thread is too slow to take, but which makes it start waiting again.
THREAD_SWITCH_S = 0.000_1

# --- tables --------------------------------------------------------------------------------------
TABLE_KEY_MAX_BYTES = 8 * KIB
TABLE_FIXED_KEY_MAX_BYTES = 256
TABLE_VALUE_MAX_BYTES = MIB - 8 * KIB
TABLE_BATCH_MAX_BYTES = 32 * MIB
TABLE_PAGE_MAX_ENTRIES = 1_000
TABLE_READ_KEYS = 1_000  # looked up in one turn of the container, about 4 us each
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
TXN_TICK_MS = 400  # how often expired leases are looked for
TXN_ID_BLOCK = 10_000  # transaction ids reserved with one write
TXN_COMMIT_BATCH = 100
TXN_TOGETHER_MAX = 1_000  # transactions that one decision commits: they are merged in one batch
TXN_COMPLETED_LIST = 500
TXN_COMPLETED_KEEP_MS = 24 * 3600 * 1000  # how long what finishes goes into one table
TXN_COMPLETED_TABLES = 3  # of these kept: of two, a start with a wrong clock could forget what has just finished
CHANGE_TRIES = 50  # of a record that others change at the same time: each lost one is a change of theirs
CHANGE_LONGEST_PAUSE_S = 0.1  # between two of them, which are over after some seconds then
CONTROLLER_CACHE_RECORDS = 20_000  # 1 KB each; one that is not here costs a look into its table
CONTROLLER_HISTORY_SEGMENTS = 200_000  # of the streams' epochs that the controller keeps in memory, 400 bytes each
EPOCHS_KEPT = 1_000  # before a stream's head: positions there are still understood; older ones are forgotten
EPOCHS_FORGOTTEN_AT_ONCE = 250
WATERMARK_PERIOD_S = 10.0  # Pravega's; between two looks at the marks of streams whose writers note times
# looked at in one round, some 2 ms each; the others have their turn in the next rounds
WATERMARK_STREAMS_A_ROUND = 1_000
NOTED_STEPS_MAX = 64  # of a writer, between two watermarks
WATERMARKS_A_ROUND = 64  # of a stream
WATERMARK_WRITERS_MAX = 10_000  # that note times in one stream at once; with more no watermarks are made
SCALING_LOG_ENTRIES = 1_000  # of a stream; the oldest give way
SCALING_STREAMS_A_ROUND = 1_000  # looked at in one round; the others have their turn in the next rounds
SCALING_SEGMENTS_A_TURN = 200  # looked at in one turn of the loop, some 10 us each, or all of one stream
SCALING_SEGMENTS_A_CHANGE = 1_000  # that a stream gets or loses by one decision: it takes 0.3 s, and 9,000 take 10
SCALING_AT_ONCE = 8  # streams that are being changed
SCALING_MEASURING_SHARE = 0.2  # of the time, at most, is spent waiting for loads
SCALING_SCAN_S = 10.0  # between two looks for streams that have no load and more segments than they need
SCALING_SCAN_STREAMS = 1_000  # looked at each time, some 10 us each
SCALING_SCAN_PAGE = 100  # of them read and held at once
SCALING_WATCHED = 10_000  # of them that are remembered
RETENTION_PERIOD_S = 10.0  # between two looks at the streams that have a retention policy; Pravega takes 30 minutes
RETENTION_CLOCK_S = 1.0  # between two comparisons of the wall clock with the monotonic one
RETENTION_CLOCK_PIECES = 1_000  # of differences between the two that are remembered
RETENTION_SETTLE_S = 60.0  # after a start nothing is truncated by time: a wrong clock is corrected meanwhile
RETENTION_STREAMS_A_ROUND = 1_000  # looked at in one round; the others have their turn in the next rounds
RETENTION_AT_ONCE = 8  # of them, some 5 ms each, and more where something goes
RETENTION_WAIT_S = 20.0  # for one stream in a round: the others don't wait for what holds it up
RETENTION_NAMES_MAX = 100_000  # bookmarks and slices of a scope; with more, retention of its streams waits
RETENTION_HOLDERS_TOLD = 100  # of those who hold a stream's head back, listed with their cuts
RETENTION_NAMES_A_TURN = 50  # of them decoded in one turn of the loop, some 20 us each
LAG_QUESTIONS = 5_000  # about moments, to the segments that a reader group stands in, some 50 us each
LAG_GROUPS = 10_000  # looked at for those that read a stream
LAG_REPLACED = 50  # of a stream's former segments, told with the lag of its groups
METRICS_CACHED_S = 1.0  # the same figures for all who ask within it
METRICS_STREAMS = 100  # told by name, the busiest; a handful of samples each
METRICS_GROUPS = 200  # reader groups' streams told by name, those farthest behind
METRICS_STREAMS_LOOKED_AT = 20_000  # counted, some 10 us each
METRICS_GROUPS_LOOKED_AT = 1_000  # of which the lag is measured, some ms each
METRICS_PAGE = 200  # records in one turn of the loop
METRICS_AT_ONCE = 4  # streams or groups that are looked at
METRICS_NAMES_S = 2.0  # for the names of streams and groups; Prometheus waits for 10 s in all
METRICS_LAGS_S = 4.0  # for lags
METRICS_KEPT_S = 2.0  # for what streams keep
STREAM_MAX_SEGMENTS = 10_000  # keeps a stream's record well under a table value's limit; so for key-value tables
STREAM_MAX_TAGS = 128
TAG_MAX_CHARS = 256
READER_GROUP_MAX_BYTES = 1000 * KIB  # a reader group's record, with all its stream cuts: one table value
READER_GROUP_ROLLOVER_BYTES = 4 * MIB  # of its stream, which is read from its last snapshot onwards
WORKFLOW_WAIT_S = 120.0  # a reply waits this long for its workflow, which goes on after it
WORKFLOW_RETRY_MAX_S = 10.0  # longest pause between two tries of a workflow while the store is away
SEGMENT_CALL_ATTEMPTS = 4
SEGMENT_CALLS_AT_ONCE = 128  # of a controller at one store: they share frames of logs; more would keep the loop long
CONVOY_FEW = 8  # workflows of a kind that go as they come; more set out together, to share frames of the logs,
CONVOY_WAIT_S = 0.3  # and wait no longer than this for those before them: a container may be between two servers

# --- REST ----------------------------------------------------------------------------------------
REST_BODY_MAX_BYTES = 256 * KIB  # a stream with the most and longest tags takes less
REST_BODY_TIMEOUT_S = 10.0
REST_HEAD_MAX_BYTES = 16 * KIB  # request line and headers
REST_SOCKET_BYTES = 32 * KIB  # of one connection in the system, which has twice that; and read ahead of us for TLS
REST_PORTION_BYTES = 16 * KIB  # of input, read and handled at a time,
REST_PORTION_LINES = 64  # or this many lines, each a header or half a chunk: 20 to 40 us
REST_STEPS_A_TURN = 2  # such portions in one turn of the loop, each with at most one request, about 0.5 ms
REST_MESSAGE_MAX_CHARS = 1_000  # of an error's text, which may quote what was sent
REST_LIST_PAGE = 200  # records examined in one turn of the loop, which appends wait for
REST_PAGES_AT_ONCE = 2  # of lists, being fetched and encoded: about 10 ms each, in parts
REST_CONNECTIONS_MAX = 1_000  # past it the connection that has been quiet longest is closed for the newcomer
REST_CONNECTIONS_OF_ADDRESS = 500
REST_CONNECTIONS_EXTRA = 50  # above these, when all are busy: health is answered, everything else gets 503
REST_HEAD_TIMEOUT_S = 10.0  # from connecting, or from the previous answer, until a request's head is complete

# --- the page ------------------------------------------------------------------------------------
PAGE_READERS = 64  # streams of events to browsers at once: an address has half of what is left
OWN_CLIENTS = 64  # of callers of REST, in this process, which go once they were idle for
OWN_CLIENT_IDLE_S = 60.0
PAGE_ANSWER_S = 15.0  # a client waits no longer for its own server
PAGE_BATCH_S = 0.04  # events go to a browser together, a full batch so often, and a smaller one its share of that:
PAGE_BATCH_LEAST_S = 0.015  # but no oftener, which is enough for videos
PAGE_BATCH_EVENTS = 200  # at most so many of them; others are counted
PAGE_BATCH_BYTES = 1 * MIB  # of payload, beyond which no event is added
PAGE_BEAT_S = 2.0  # how often a browser hears something though nothing comes
PAGE_TAIL_BYTES_A_S = 16 * MIB  # read at a tail for a browser, which is told of what it misses
PAGE_TAIL_SEGMENTS = 1_000  # at once, of a stream whose tail a browser is shown
PAGE_TEXT_BYTES = 64 * KIB  # of an event's payload
PAGE_PICTURE_BYTES = 2 * MIB
PAGE_PIECE_BYTES = 128 * KIB  # read at a time of each segment that is played
PAGE_PIECES_BYTES = 8 * MIB  # of all of them together, but at least:
PAGE_PIECE_LEAST_BYTES = 8 * KIB
PAGE_BEHIND_S = 0.5  # playing that is later than this passes over what it should have shown
PAGE_RATES_S = 1.0  # the rates of all streams aren't gathered anew sooner
PAGE_ASKED_AT_ONCE = 16  # segments, about when they were written
PAGE_CUT_SEGMENTS = 256  # that are asked about the time of one cut, of those that it goes through
PAGE_INDEX_S = 2.0  # one waits for the times of events that aren't in the index, before one is told how far it is
PAGE_INDEXED_AT_ONCE = 4  # streams, by one caller
PAGE_MOMENTS_PAGES = 16  # of a segment's time index, read for a picture, of each of its clocks
PAGE_STEPS = 16_000  # of time in a picture, of all segments together, but at least 20 of each

# --- notebooks -----------------------------------------------------------------------------------
NOTEBOOK_ASKS_S = 5.0  # what is shown of a reader group is not waited for longer
NOTEBOOK_READERS = 8  # of events for the players of one widget, and questions of them, at a time
NOTEBOOK_AHEAD = 2  # batches on their way to a browser that it has not taken yet
NOTEBOOK_SILENCE_S = 60.0  # a browser that takes none for so long is gone
NOTEBOOK_SEGMENTS = 5_000  # drawn on a player's bar, the newest
NOTEBOOK_PLACES = 200  # bookmarks there, and slices

# --- gRPC ----------------------------------------------------------------------------------------
RPC_CONNECTIONS_MAX = 1_000
RPC_STREAMS_MAX = 100  # calls in flight on one connection; clients hold back further ones
RPC_AT_ONCE = 1_000  # calls in flight on all; an address with as many as are left is refused more as UNAVAILABLE
RPC_REFUSED_AT_ONCE = 1_000  # such refusals in flight; past it every call is refused as RESOURCE_EXHAUSTED
RPC_MESSAGE_MAX_BYTES = 2 * MIB  # twice the largest record that one is stored as
RPC_SENT_AHEAD_BYTES = 16 * KIB  # of a call before its request is read: gRPC holds them, 16 MiB for all calls at once
RPC_RECEIVING_BYTES = 64 * MIB  # for incoming requests, each counted as the largest: 32 at a time
RPC_WORK_BYTES = 64 * MIB  # for requests being processed, as messages and what is made from them:
RPC_WORK_TIMES = 10  # this many times what was sent, since a stream cut's 14 bytes become two numbers in a dict;
RPC_SMALL_BYTES = 8 * KIB  # smaller ones don't count: for all calls at once they take 8 MiB, and 80 while processed
RPC_ROOM_TIMEOUT_S = 10.0  # a call that finds no such room within it is refused as UNAVAILABLE
RPC_PARTS_MAX = 2 * STREAM_MAX_SEGMENTS  # of one kind in a request: a stream cut may stand in two full epochs
RPC_PORTION_BYTES = 64 * KIB  # of a request, parsed in one turn of the loop,
RPC_PORTION_PARTS = 2_000  # or this many fields, which are counted first: about 1 ms
RPC_ENTRIES_A_TURN = 2_500  # of a reader group's stream cuts, each made a number in a dict or in a message: 1 ms
RPC_MESSAGES_A_TURN = 250  # of segments in a reply, 4 us each
CUT_QUICK_SEGMENTS = 200  # of a stream: with more, its cuts are compared in a thread, about 15 us each
RPC_METADATA_MAX_BYTES = 24 * KIB  # of one call: the largest authorization, plus whatever else is sent
RPC_MESSAGE_TIMEOUT_S = 5.0  # from a call's start until its request has arrived: 32 silent calls take all the room
RPC_STARTS_A_TURN = 4  # calls started in one turn of the loop, about 0.3 ms each
RPC_IDLE_S = 60.0  # a connection without calls ends, so that others find a place; clients connect again by themselves
RPC_KEEPALIVE_S = 60.0  # after which a quiet peer is asked whether it is still there,
RPC_KEEPALIVE_TIMEOUT_S = 20.0  # and has this long to answer

# --- between the servers of a cluster ------------------------------------------------------------
PEER_CONNECT_S = 2.0
PEER_SILENCE_S = 5.0  # after which a store that says nothing, and answers no keep-alive, counts as gone
PEER_ANSWER_S = 30.0  # of a store that is there: its log may have to wait
FORWARD_CHANNELS = RPC_AT_ONCE // RPC_STREAMS_MAX  # connections to the active controller: all calls that may be here
FORWARD_KEEPALIVE_S = 3.0  # a quiet one is asked whether it is still there, and has as long to answer
FORWARD_REST_AT_ONCE = 100  # requests on their way to the active controller, and as long as that takes:
FORWARD_REST_SILENCE_S = 300.0  # a scope's deletion says nothing before it is done

# --- a log that is a chain of objects ------------------------------------------------------------
CHAIN_TRY_S = 5.0  # until a call to the store of a log counts as one without an answer, and a second more
CHAIN_TRY_BYTES_PER_S = MIB  # for so many bytes; it is tried again, with pauses
CHAIN_LONGEST_PAUSE_S = 1.0  # no longer than this
CHAIN_READ_AHEAD = 32  # objects, while the end of a log is looked for
CHAIN_AHEAD_BYTES = 32 * MIB  # of frames that wait for the state they change
CHAIN_BRAKE = 24  # numbers ahead of a live owner: there a seal stops it that loses the race at the end
CHAIN_SLOW_S = 0.010  # a frame that took longer is followed by a pause
CHAIN_PAUSE_PART, CHAIN_PAUSE_S = 1 / 16, 0.005  # of so much of the time that it took, and no longer
CHAIN_CLOSE_S = 5.0  # to wait for a frame under way when a log is closed
CHAIN_OBJECT_MOST_BYTES = 22 * MIB  # the largest: a frame (4 MiB), one request more (17 MiB), and their checksums
CHAIN_DELETED_AT_ONCE = 500  # names in one call

# --- records, membership and placement -----------------------------------------------------------
CLUSTER_CALL_S = 2.0  # until a question to the registry counts as one without an answer
CLUSTER_RECORD_TRIES = 8  # of a change to a container's record, which takes 1 s altogether if the store answers
CLUSTER_RECORDS_AT_ONCE = 32  # read at one time
CLUSTER_BEAT_S = 1.0  # how often a server says that it is there, and looks who else is
CLUSTER_LEASE_S = 2.0  # so long after it began to say so, at most, it answers reads; two beats at least
CLUSTER_DEAD_S = 3.0  # one that has said nothing for this long is dead: a quarter more than the lease, for clocks drift
CLUSTER_CALLS_AT_ONCE = 8  # of such questions about single servers
CLUSTER_VALUE_S = 5.0  # how often what a server says of itself is read; that it says anything is seen with each beat
CLUSTER_FORGET_S = 24 * 3600.0  # a dead server's entry is deleted after this,
CLUSTER_DEAD_KEPT = 100  # or if there are more of them: a server that can't stay up leaves one with each start
CLUSTER_LEAVE_TRIES = 3  # to remove its own entry; if none succeeds, the others wait for its death
CLUSTER_SETTLE_S = 3.0  # without a change of servers, before anybody claims containers that never had an owner
CLUSTER_STABLE_S = 30.0  # the same, before a container is moved for balance
CLUSTER_TURN_S = 1.0  # for each of those that come first in line for a container without an owner
CLUSTER_ARRIVAL_S = 10.0  # a container that was released to a server may be claimed by others after this
CLUSTER_TAKES_AT_ONCE = 8  # containers that a server opens at one time, each with frames that wait
CLUSTER_FAILED_TAKES = 3  # in a row, before a server gives a container on that it can't open
CLUSTER_RETAKE_S = 5.0  # the longest pause before the next try of that server
CLUSTER_CLOSE_LOOK_S = 0.05  # how often the record of a container that is about to change hands is read
CLUSTER_ORPHAN_LOOK_S = 0.1  # how often all records are looked at while somebody is to take those of a dead server
CLUSTER_ANNOUNCE_S = 1.5  # from saying so to doing it: until everybody has seen it
CLUSTER_HAND_OVER_S = 60.0  # for all that comes before a container is closed to be handed over
CLUSTER_START_S = 60.0  # for a new server to see a controller in its cluster
CLUSTER_DRAIN_S = 25.0  # for a server to stop, whatever is broken: orchestrators kill after 30 s
CLUSTER_LEAVE_S = 8.0  # of these, for closing what it couldn't hand over before,
CLUSTER_BREAK_S = 6.0  # and for what is left once it doesn't wait for the store any more
CLUSTER_STOP_S = 28.0  # then the process ends, even if something keeps it
CLUSTER_WHERE_S = 10.0  # that an answer waits which says where a segment is, while that isn't settled,
CLUSTER_WHERE_AT_ONCE = 500  # such answers, half of all calls that may be in flight; more are refused,
CLUSTER_WHERE_LOOK_S = 0.05  # and how often it is looked up meanwhile
CLUSTER_RING_S = 0.5  # for a store to take a connection, before its address is told

# --- looking and cleaning, for an operator -------------------------------------------------------
CLUSTER_LOGS_AT_ONCE = 8  # containers whose objects are listed at one time
JANITOR_EACH_S = 24 * 3600.0  # from one cleaning to the next, in the server that has container 0
JANITOR_FIRST_S = 3600.0  # before the first: a server that can't stay up cleans nothing
JANITOR_OLDER_S = 24 * 3600.0  # what is younger stays, whatever names it
JANITOR_LEAST_OLDER_S = 3600.0  # and may be told to stay no shorter than this
JANITOR_PAUSE_S = 0.2  # after each page of a listing
JANITOR_DELETED_AT_ONCE = 500  # names in one call

# --- migrations ----------------------------------------------------------------------------------
MIGRATION_PAUSE_S = 60.0  # writers are held for so long at most, unless the command says otherwise,
MIGRATION_PAUSE_MAX_S = 3600.0  # and no longer than this
MIGRATION_REFRESH_S = 300.0  # for new snapshots of all containers
MIGRATION_PASSES = 10  # over what has changed, before writers are held whatever is left,
MIGRATION_LEFT_BYTES = 64 * MIB  # or once a pass had no more to copy than this
MIGRATION_COPIES_AT_ONCE = 4  # chunks, each of them in memory
MIGRATION_ROWS = 10_000  # of a state, written in one transaction
MIGRATION_LATE_S = 10.0  # for the mark of a server that gave no answer
MIGRATION_TRIES = 5  # to read a snapshot while a server replaces it
MIGRATION_TURN_BEAT_S = 2.0  # how often one says in the store that it is under way: GCS takes one write a second
MIGRATION_TURN_DEAD_S = 10.0  # one that has said nothing for so long, by the clock of the next, has ended

# --- KEDA's questions ----------------------------------------------------------------------------
SCALER_METADATA_MAX_CHARS = 8 * KIB  # of a trigger, names and values
SCALER_LOOK_S = 0.25  # between two looks at a stream that is watched; what one has seen is told to all for as long
SCALER_AT_ONCE = 4  # questions how far a reader group is behind; a silent store holds up others when it has all of them
SCALER_KEPT = 1_000  # streams and groups whose latest numbers are kept, a second's work or less
SCALER_WATCHES_MAX = 200  # StreamIsActive calls under way on all connections, and on one,
SCALER_WATCHES_OF_CONNECTION = 50  # for KEDA sends all questions over one, and no more than RPC_STREAMS_MAX at a time
SCALER_PERMIT_S = 10.0  # after which a watch's credentials are checked again

# --- access control ------------------------------------------------------------------------------
LOGINS_AT_ONCE = 2  # passwords being checked; each costs 0.1 to 0.4 s of a core, depending on the machine
LOGINS_WAITING = 128  # or waiting to be, at most half of them from one address; addresses in rotation
LOGINS_KEPT = 1_000  # checked credentials, so that not every request pays for a check
TOKENS_KEPT = 10_000  # delegation tokens whose signature was checked
AUTHORIZATION_MAX_CHARS = 16_384  # of a request's authorization header; longer ones are wrong
BEARER_KEYS_REFRESH_S = 10.0  # a key set isn't fetched again sooner, whatever unknown key a token names
BEARER_KEYS_AGE_S = 300.0  # and is fetched again when it is older than this
TLS_HANDSHAKES_A_TURN = 1  # started by each door in a turn of the loop: 0.5 ms with ECDSA, 3 ms with 3,072-bit RSA
TLS_HANDSHAKE_S = 20.0  # a peer that is slower loses its connection

# --- a server's end ------------------------------------------------------------------------------
STOP_DOOR_S = 3.0  # for each of its doors, and of what it has open to others, once calls have had their second
STOP_STORE_S = 90.0  # for a data folder to have what was queued, and seals, which read all of the states
STOP_S = 115.0  # for the process to end, whatever is broken: `deploy/` has it killed after two minutes

# --- client --------------------------------------------------------------------------------------
WRITER_BLOCK_BYTES = 1 * MIB  # at most one append (plus one event)
WRITER_PENDING_BYTES = 32 * MIB  # unacknowledged bytes of one writer; past it writing waits
READ_AHEAD_BYTES = 8 * MIB  # what one segment reader keeps in flight
SCHEMA_MAX_BYTES = 512 * KIB  # one stored schema; half of what a table value may have
SCHEMA_MAX_VERSIONS = 1_000  # of one stream; keeps the list of them well under a table value's limit
SCHEMA_CACHE_DECODERS = 256  # of one reader, for the schemas its events were written with
BYTE_APPEND_BYTES = 8 * MIB  # one append of a byte stream: what is written up to it is stored as a whole
BYTE_JOIN_BYTES = 1 * MIB  # smaller waiting pieces are joined up to this size
BYTE_UNDER_WAY_BYTES = 16 * MIB  # sent but unanswered, of one byte stream's writer: two of the largest appends
INDEX_RECORD_MAX_BYTES = 64 * KIB  # of a stream that nadi's writer begins: READ_WHOLE_BYTES
INDEX_FIELDS = 100  # of an index record, as for official writers
STATE_UPDATE_ATTEMPTS = 1_000  # tries of one update of shared state while others are faster
TABLE_ITERATOR_PAGE = 100  # entries asked for at once from each partition of a key-value table
SEGMENT_ENDS_KEPT = 20_000  # sealed segments whose ends one planner remembers, about 300 bytes each
BOOKMARK_NOTE_MAX_CHARS = 4_096
BOOKMARK_MAX_TAGS = 128
READ_AHEAD_OF_ALL_BYTES = 64 * MIB  # what one reader keeps, over all its segments
READ_JOINED_BYTES = 64 * KIB  # small waiting blocks are handed out together, up to this
SKIPPED_DAMAGES_KEPT = 1_000  # the latest that a reader which skips damage remembers; all are logged
READER_GROUP_CHECKPOINTS = 8  # complete ones that a group remembers: each holds all segments' positions

# --- Spark ---------------------------------------------------------------------------------------
SPARK_STREAMS = 1_000  # that one query reads: each has its cut in every offset
SPARK_LOOK_FOR_STREAMS_S = 2.0  # how often a query looks for streams that were created
SPARK_LAG_EVERY_S = 1.0  # how often the lag of a query that stands still is measured
SPARK_COMPARED_AT_ONCE = 2_000_000  # hashes that are held while two outputs are compared
SPARK_MIRRORED_BYTES = 256 * MIB  # of a checkpoint; a mirror of it holds them in memory
SPARK_CUTOVER_EVERY_S = 1.0  # how often a query looks whether another is to take over from it
SPARK_STREAMS_AT_ONCE = 16  # of them, asked about at one time
SCAN_SPLITS = 10_000  # of one scan, each a few KiB with its pieces
SPARK_FOLLOWED_STREAMS = 100  # whose segments one loop counts to request executors: a question each, every few seconds

# --- limits that somebody sets in the environment -------------------------------------------------
_BLOCK_BYTES = 4096  # of a disk, as `segmentstore.tier1.layout` has it
_LEAST = {"RUN_LEAST_BYTES": _BLOCK_BYTES, "LOG_FILE_BYTES": 2 * _BLOCK_BYTES, "LOG_FIRST_FILE_BYTES": 2 * _BLOCK_BYTES}
_WHOLE_BLOCKS = frozenset({"LOG_FILE_BYTES", "LOG_FIRST_FILE_BYTES"})


def override(limits: dict[str, Any], text: str) -> None:
    """Set limits from `name=value,...`; ValueError for one that doesn't exist, or a value that it can't have.

    >>> limits = {"QUEUE_MAX_BYTES": 10, "CHUNK_FLUSH_AGE_S": 10.0}
    >>> override(limits, "chunk_flush_age_s=0.5,queue_max_bytes=7")
    >>> limits
    {'QUEUE_MAX_BYTES': 7, 'CHUNK_FLUSH_AGE_S': 0.5}
    """
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        name = name.strip().upper()
        if not isinstance(limits.get(name), int | float):
            raise ValueError(f"NADI_LIMITS: there is no limit {name}")
        kind = type(limits[name])
        try:
            number = kind(value)
        except ValueError:
            number = kind(0)
        least = _LEAST.get(name, 0)
        unit = _BLOCK_BYTES if name in _WHOLE_BLOCKS else 0
        if not 0 < number < math.inf or number < least or (unit and number % unit):
            what = f"multiple of {unit}" if unit else "whole number" if kind is int else "number"
            bound = f"not below {least}" if least else "above 0"
            raise ValueError(f"NADI_LIMITS: {name} is to be a {what} {bound}, such as {limits[name]}, not {value!r}")
        limits[name] = number


override(globals(), os.environ.get("NADI_LIMITS", ""))  # before any module imports a limit
