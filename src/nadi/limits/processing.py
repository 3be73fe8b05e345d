"""Limits of what is done with streams, and of HDFS; imported from `nadi.limits`, as all others."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# --- functions ------------------------------------------------------------------------------------
FUNCTION_BATCH_EVENTS = 10_000  # the most that a handler is given at once: they are in memory several times meanwhile
FUNCTION_WORKERS = 1_000  # of one `nadi function run`: each is a process
FUNCTION_RETRIES = 1_000  # of one event
FUNCTION_LEASE_MS = 600_000  # of a transaction whose position is not recorded yet, without contact from its worker
FUNCTION_ERROR_CHARS = 2_000  # of an exception's message, in dead letters and in `nadi function status`
FUNCTION_SLICE_S = 0.5  # after which what single events gave is recorded, before the batch is done
FUNCTION_SLICE_BYTES = 8 * MIB  # and with which it is, too
FUNCTION_START_S = 60.0  # a handler's process may take to import what it needs
FUNCTION_DRAIN_S = 30.0  # what is being handled may take this long when the function is stopped
FUNCTION_LOOK_S = 1.0  # how often the supervisor looks at unread data while there are workers, or others have some
FUNCTION_IDLE_LOOK_S = 30.0  # and how often it looks at the group while nothing is unread
FUNCTION_PROBES = 100  # segments whose length is asked for at one time
FUNCTION_RETRY_AFTER_S = 300.0  # the longest that a service can ask to wait for
FUNCTION_REPLY_BYTES = 64 * MIB  # of a service's answer
DEAD_LETTER_DATA_BYTES = 4 * MIB  # of an event, kept in its dead letter: base64 makes a third more of it

# --- what takes data from elsewhere ---------------------------------------------------------------
INGEST_BODY_MAX_BYTES = 8 * MIB  # the largest event of one append; packed, and unpacked
INGEST_EVENTS_MAX = 100_000  # in one request: with their headers they still fit one append
INGEST_LITTLE_BYTES = 64 * KIB  # a body that needs no place: as much as its connection reads ahead anyway
INGEST_LARGE_AT_ONCE = 8  # larger bodies being read, or worked on
INGEST_PLACE_S = 10.0  # one that finds no such place within it is refused, and sent again
INGEST_PARSED_AT_ONCE = 2  # in threads, which hold the interpreter
INGEST_PARSED_HERE_BYTES = 8 * KIB  # less is parsed in the loop's turn: about 0.1 ms
INGEST_ANSWER_S = 30.0  # until a request whose events aren't stored yet is answered so
INGEST_STREAMS = 100  # to which one caller has a writer
INGEST_REMEMBERED_S = 24 * 3600.0  # an Idempotency-Key is looked for in segments that were replaced no longer ago
INGEST_HORIZON_S = 600.0  # how old the answer may be where these begin
INGEST_SETUPS = 5_000  # of writers on one connection: a server takes 20,000
IDEMPOTENCY_KEY_MAX_CHARS = 255
OTLP_EVENTS_MAX_BYTES = 32 * MIB  # of a request's records as events: each has what its resource says, again
OTLP_DEPTH_MAX = 32  # lists and maps within each other, in a value of a log record

# --- lakes ----------------------------------------------------------------------------------------
LAKE_EVERY_MIN_S = 0.05  # between two commits: a catalog takes some
LAKE_EVERY_MAX_S = 86_400.0
LAKE_COMMIT_BYTES = 512 * MIB  # of the stream in one snapshot, about, while a lake catches up
LAKE_ROW_GROUP_BYTES = 32 * MIB  # of rows in memory that are written to a file together
LAKE_PENDING_BYTES = 128 * MIB  # of rows of all partitions that aren't in a file yet
LAKE_FILE_BYTES = 512 * MIB  # of rows in memory, in one file: a fifth of that or less, once it is packed
LAKE_FILES_OPEN = 200  # partitions being written at one time
LAKE_LETTERS_AT_ONCE = 500  # written together
LAKE_RETRY_LONGEST_S = 60.0  # between two tries, while the catalog or its storage is away
LAKE_ONCE_TRIES_S = 15.0  # while it is away: how long one tries that is to end when the table is level
LAKE_SMALL_FILE_BYTES = 32 * MIB  # less is joined with others of its partition,
LAKE_COMPACTED_BYTES = 512 * MIB  # about so much at once, in one snapshot
LAKE_COMPACT_EVERY_S = 60.0  # how often a writer looks for small files, and for snapshots that are old enough to go
LAKE_REBUILT_WINDOW_BYTES = 64 * MIB  # of a segment that are read of a table at once, and put in order in memory
LAKE_REBUILT_AT_ONCE = 2_000  # events that are written together
LAKE_FILE_PIECES = 64  # of one file, each of which reads its footer anew
LAKE_READ_AHEAD = 2  # pieces of a table's files that are fetched while others are read, each in memory as a whole

# --- processing streams ---------------------------------------------------------------------------
PROCESS_BEAT_S = 1.0  # how often a worker says that it is there
PROCESS_GONE_S = 5.0  # one that hasn't for so long is gone: others take its segments
PROCESS_SILENT_S = 10.0  # one that said nothing for so long, by the observer's clock, isn't shown as there
PROCESS_END_S = 6.0  # what runs gets so long to end once it is told to; then it is cancelled, as a kill does no harm
PROCESS_LEAVE_S = 1.0  # and so long to say that it leaves
PROCESS_BATCH_BYTES = 4 << 20  # of events that a processor handles before it records how far it is
PROCESS_BATCH_EVENTS = 1_000
PROCESS_RECORD_S = 1.0  # how often it does so within a batch that takes longer
PROCESS_BATCH_S = 0.02  # how long the first event of a batch waits for others

# --- search ---------------------------------------------------------------------------------------
SEARCH_FIELDS = 100  # of an index
SEARCH_FIELD_CHARS = 255  # of a field's name
SEARCH_KEYWORD_BYTES = 32 * KIB  # a longer keyword is no keyword: the event doesn't parse
SEARCH_TOKEN_BYTES = 256  # a longer word of a text is not found
SEARCH_QUERY_CHARS = 20_000
SEARCH_QUERY_DEPTH = 40  # parentheses and NOTs within each other
SEARCH_QUERY_PARTS = 1_000  # terms of a query, bound to an index's fields
SEARCH_APART = 20  # words, at most, that two may be apart which are asked for near each other

SEARCH_COMMIT_S = 0.3  # how long what came waits for more, before it becomes a shard
SEARCH_BATCH_EVENTS = 100_000  # of a shard while there is much to index,
SEARCH_BATCH_BYTES = 32 * MIB  # and their bytes in the stream: three such batches are in memory
SEARCH_WRITER_BYTES = 256 * MIB  # that tantivy may use for one shard
SEARCH_SHARDS = 2_000  # of one index; indexing waits for merges beyond it
SEARCH_MERGE_SHARDS = 64  # merged at once
SEARCH_MERGE_DOCS = 4_000_000  # a shard with more stays as it is
SEARCH_RETIRED_S = 120.0  # a replaced shard is kept so long for queries that began before
SEARCH_ORPHAN_S = 3600.0  # what nobody's manifest names is deleted when it is older
SEARCH_TIDY_S = 10.0  # how often what retention or a merge left is looked for
SEARCH_DROP_S = 30.0  # how long dropping an index waits for its indexers to end
SEARCH_SCOPE_S = 5.0  # how long an indexer whose stream was deleted looks whether the scope goes, too
SEARCH_LOOK_S = 0.25  # how often an indexer, or one who waits for a cut, looks at the manifest
SEARCH_HITS = 1_000  # of a page
SEARCH_PAGE_BYTES = 16 * MIB  # of a page's events, if it has more than one: it ends earlier then
SEARCH_PREFIX_BYTES = 512  # of what words or keywords begin with
SEARCH_BEST_HITS = 10_000  # among the best, on all pages
SEARCH_KEPT = 8  # indexes as they were, for further pages of the best
SEARCH_BUCKETS = 10_000  # of one count, or of the events that have one order
SEARCH_SNIPPET_CHARS = 200
REST_SEARCHES = 20  # indexes that a caller of REST has open
REST_STANDING_QUERIES = 200  # of a stream, that are listed
SEARCH_HITS_AT_ONCE = 16  # events of a page being fetched from the stream
SEARCH_REASON_CHARS = 500  # of why an event can't be indexed
SEARCH_MATCH_S = 0.05  # how long what came waits for more, before standing queries are matched with it
SEARCH_MATCH_BYTES = 4 * MIB  # of events that are matched at once
SEARCH_HIT_BYTES = 4 * MIB  # of an event, in all its hits together; beyond it they only say where it is
SEARCH_STANDING_QUERIES = 100_000  # of a stream
SEARCH_STANDING_GROUPS = 1_000  # in which they were added, each at once
SEARCH_RECORDS_AT_ONCE = 500  # queries stored in one request
SEARCH_NEAR_BYTES = 4 * MIB  # of the live stream, where new queries that come from the past join it
SEARCH_CACHED_S = 3600.0  # an unused shard stays so long in a query's local cache
SEARCH_CACHED_INDEX_S = 86_400.0  # and all shards of an index that nobody opens
SEARCH_MANIFEST_BYTES = 64 * MIB  # of a manifest, unpacked: a longer one isn't one that nadi wrote

# --- streams that are read and written as tables --------------------------------------------------
STREAM_TABLE_KEYS = 16  # columns of a stream table's key
STREAM_TABLE_TXN_BYTES = 256 * MIB  # of rows in one transaction: some seconds
STREAM_TABLE_BATCH_ROWS = 10_000  # made events of at one time
STREAM_TABLE_MEMORY_BYTES = 256 * MIB  # about, for the latest rows of a table's keys and copies; more are in files,
STREAM_TABLE_PARTS = 32  # over so many of which keys are divided, and each again if need be
STREAM_TABLE_ROUND_EVENTS = 50_000  # whose changes are written by one transaction, where
STREAM_TABLE_ROUND_BYTES = 16 * MIB  # more than so many bytes of them wait
STREAM_TABLE_LEASE_MS = 600_000  # of a transaction with changes, without contact from whoever writes it

# --- what is kept in HDFS -------------------------------------------------------------------------
HDFS_CALLS_AT_ONCE = 24  # of one store: what reads and moves at one time, and a few more
HDFS_ANSWER_S = 30.0  # a call without an answer is given up after it; a put has longer,
HDFS_PUT_S = 15.0  # by the time that its bytes take at that rate:
HDFS_PUT_BYTES_A_S = 512 * 1024
HDFS_UNFINISHED_S = 3600.0  # what a killed writer left is removed when it is that old
HDFS_SET_TRIES = 20  # of a small value, against others that set it, too
