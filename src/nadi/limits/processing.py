"""Limits of stream processing and of HDFS; import them from `nadi.limits`."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# --- functions ------------------------------------------------------------------------------------
FUNCTION_BATCH_EVENTS = 10_000  # the maximum passed to a handler at once: they are in memory several times meanwhile
FUNCTION_WORKERS = 1_000  # of one `nadi function run`: each is a process
FUNCTION_RETRIES = 1_000  # of one event
FUNCTION_LEASE_MS = 600_000  # of a transaction whose position isn't recorded yet, without contact from its worker
FUNCTION_ERROR_CHARS = 2_000  # of an exception's message, in dead letters and in `nadi function status`
FUNCTION_SLICE_S = 0.5  # after which results of single events are recorded, before the batch is done,
FUNCTION_SLICE_BYTES = 8 * MIB  # or once they reach this size
FUNCTION_START_S = 60.0  # for a handler's process to import its modules
FUNCTION_DRAIN_S = 30.0  # for events in progress when the function is stopped
FUNCTION_POLL_S = 1.0  # interval of the supervisor's checks for unread data while workers exist, here or elsewhere,
FUNCTION_IDLE_POLL_S = 30.0  # and of its checks of the group while all data is read
FUNCTION_PROBES = 100  # segments whose length is queried concurrently
FUNCTION_RETRY_AFTER_S = 300.0  # the longest retry delay that a service can request
FUNCTION_REPLY_BYTES = 64 * MIB  # of a service's response
DEAD_LETTER_DATA_BYTES = 4 * MIB  # of an event, stored in its dead letter: base64 adds a third

# --- ingest ---------------------------------------------------------------------------------------
INGEST_BODY_MAX_BYTES = 8 * MIB  # the largest event of one append; packed, and unpacked
INGEST_EVENTS_MAX = 100_000  # in one request: with their headers they still fit one append
INGEST_LITTLE_BYTES = 64 * KIB  # a body that needs no slot: its connection reads as much ahead anyway
INGEST_LARGE_AT_ONCE = 8  # slots for larger bodies being read, or processed
INGEST_SLOT_TIMEOUT_S = 10.0  # a request that gets no slot within it is refused, for its client to retry
INGEST_PARSED_AT_ONCE = 2  # in threads, which hold the interpreter
INGEST_PARSED_HERE_BYTES = 8 * KIB  # smaller bodies are parsed in the loop: about 0.1 ms
INGEST_ANSWER_S = 30.0  # timeout of a request whose events aren't stored yet
INGEST_STREAMS = 100  # with a writer, for one caller
INGEST_REMEMBERED_S = 24 * 3600.0  # how long after its replacement a segment is searched for an Idempotency-Key
INGEST_HORIZON_S = 600.0  # maximum age of the cached start of these segments
INGEST_SETUPS = 5_000  # of writers on one connection: a server accepts 20,000
IDEMPOTENCY_KEY_MAX_CHARS = 255
OTLP_EVENTS_MAX_BYTES = 32 * MIB  # of a request's records as events: each repeats its resource's attributes
OTLP_DEPTH_MAX = 32  # nested lists and maps, in a value of a log record

# --- lakes ----------------------------------------------------------------------------------------
LAKE_EVERY_MIN_S = 0.05  # between two commits: a catalog takes a while for each
LAKE_EVERY_MAX_S = 86_400.0
LAKE_COMMIT_BYTES = 512 * MIB  # of the stream in one snapshot, approximately, while a lake catches up
LAKE_ROW_GROUP_BYTES = 32 * MIB  # of rows in memory written to a file together
LAKE_PENDING_BYTES = 128 * MIB  # of rows of all partitions that aren't in a file yet
LAKE_FILE_BYTES = 512 * MIB  # of rows in memory, in one file: a fifth of that or less once compressed
LAKE_FILES_OPEN = 200  # partitions written concurrently
LAKE_DEAD_LETTERS_AT_ONCE = 500  # written together
LAKE_RETRY_LONGEST_S = 60.0  # between two tries, while the catalog or its storage is unavailable
LAKE_ONCE_TRIES_S = 15.0  # retries of a run that ends when the table is up to date, while it is unavailable
LAKE_SMALL_FILE_BYTES = 32 * MIB  # smaller files are merged with others of their partition,
LAKE_COMPACTED_BYTES = 512 * MIB  # about this much at a time, in one snapshot
LAKE_COMPACT_EVERY_S = 60.0  # interval of a writer's checks for small files, and for expired snapshots
LAKE_REBUILT_WINDOW_BYTES = 64 * MIB  # of a segment, read from a table and sorted in memory at a time
LAKE_REBUILT_AT_ONCE = 2_000  # events written together
LAKE_FILE_PIECES = 64  # of one file; each reads its footer again
LAKE_READ_AHEAD = 2  # pieces of a table's files fetched ahead, each in memory completely

# --- processing streams ---------------------------------------------------------------------------
PROCESS_BEAT_S = 1.0  # interval of a worker's heartbeats
PROCESS_DEAD_S = 5.0  # without a heartbeat, a worker counts as dead: others take over its segments
PROCESS_SILENT_S = 10.0  # without a heartbeat, by the observer's clock, it isn't listed
PROCESS_END_S = 6.0  # for work in progress to end on a stop; then it is cancelled, which is as harmless as a kill
PROCESS_LEAVE_S = 1.0  # and to announce the departure
PROCESS_BATCH_BYTES = 4 << 20  # of events that a processor handles before it records its position
PROCESS_BATCH_EVENTS = 1_000
PROCESS_RECORD_S = 1.0  # interval of recording it within a batch that takes longer
PROCESS_BATCH_S = 0.02  # the first event of a batch waits this long for others

# --- search ---------------------------------------------------------------------------------------
SEARCH_FIELDS = 100  # of an index
SEARCH_FIELD_CHARS = 255  # of a field's name
SEARCH_KEYWORD_BYTES = 32 * KIB  # a longer keyword is invalid: the event doesn't parse
SEARCH_TOKEN_BYTES = 256  # a longer word of a text isn't indexed
SEARCH_QUERY_CHARS = 20_000
SEARCH_QUERY_DEPTH = 40  # nested parentheses and NOTs
SEARCH_QUERY_PARTS = 1_000  # terms of a query, bound to an index's fields
SEARCH_APART = 20  # maximum distance, in words, of a proximity query

SEARCH_COMMIT_S = 0.3  # events wait this long for more, before they become a shard
SEARCH_BATCH_EVENTS = 100_000  # of a shard during catch-up,
SEARCH_BATCH_BYTES = 32 * MIB  # and their bytes in the stream: three such batches are in memory
SEARCH_WRITER_BYTES = 256 * MIB  # that tantivy may use for one shard
SEARCH_SHARDS = 2_000  # of one index; above it indexing waits for merges
SEARCH_MERGE_SHARDS = 64  # merged together
SEARCH_MERGE_DOCS = 4_000_000  # larger shards aren't merged
SEARCH_RETIRED_S = 120.0  # a replaced shard is kept this long for running queries
SEARCH_ORPHAN_S = 3600.0  # an object that no manifest names is deleted when it is older
SEARCH_TIDY_S = 10.0  # interval of cleanup after retention and merges
SEARCH_DELETE_S = 30.0  # deleting an index waits this long for its indexers to end
SEARCH_SCOPE_S = 5.0  # an indexer whose stream was deleted watches this long whether the scope is deleted too
SEARCH_POLL_S = 0.25  # polling interval for the manifest, by indexers and callers that wait for a cut
SEARCH_HITS = 1_000  # of a page
SEARCH_PAGE_BYTES = 16 * MIB  # of a page's events, if it has several: a page ends early above it
SEARCH_PREFIX_BYTES = 512  # of a prefix of words or keywords
SEARCH_BEST_HITS = 10_000  # ranked hits, on all pages
SEARCH_VERSIONS_CACHED = 8  # index versions kept, for further pages of ranked hits
SEARCH_BUCKETS = 10_000  # of one count, or of the events in one order
SEARCH_SNIPPET_CHARS = 200
REST_SEARCHES = 20  # indexes open for one REST caller
REST_STANDING_QUERIES = 200  # of a stream, in a list
SEARCH_HITS_AT_ONCE = 16  # events of a page fetched concurrently from the stream
SEARCH_REASON_CHARS = 500  # of the reason why an event can't be indexed
SEARCH_MATCH_S = 0.05  # events wait this long for more, before standing queries are matched
SEARCH_MATCH_BYTES = 4 * MIB  # of events matched together
SEARCH_HIT_BYTES = 4 * MIB  # of an event, in all its hits together; above it hits contain only its position
SEARCH_STANDING_QUERIES = 100_000  # of a stream
SEARCH_STANDING_GROUPS = 1_000  # in which they were added, one per call
SEARCH_RECORDS_AT_ONCE = 500  # queries stored in one request
SEARCH_NEAR_BYTES = 4 * MIB  # of the live stream, where new queries that finished their backfill join it
SEARCH_CACHED_S = 3600.0  # an unused shard stays this long in a query's local cache
SEARCH_CACHED_INDEX_S = 86_400.0  # and all shards of an unused index
SEARCH_MANIFEST_BYTES = 64 * MIB  # of a manifest, unpacked: nadi writes shorter ones

# --- stream tables --------------------------------------------------------------------------------
STREAM_TABLE_KEYS = 16  # columns of a stream table's key
STREAM_TABLE_TXN_BYTES = 256 * MIB  # of rows in one transaction: some seconds
STREAM_TABLE_BATCH_ROWS = 10_000  # converted to events at a time
STREAM_TABLE_MEMORY_BYTES = 256 * MIB  # about, for the latest rows of a table's keys and copies; more are in files,
STREAM_TABLE_PARTS = 32  # files that keys are distributed over, recursively if necessary
STREAM_TABLE_ROUND_EVENTS = 50_000  # whose changes are written by one transaction, if
STREAM_TABLE_ROUND_BYTES = 16 * MIB  # more than this much is waiting
STREAM_TABLE_LEASE_MS = 600_000  # of a transaction with changes, without contact from its writer

# --- HDFS -----------------------------------------------------------------------------------------
HDFS_CALLS_AT_ONCE = 24  # of one store: concurrent reads and moves, and a few more
HDFS_ANSWER_S = 30.0  # timeout of a call; a put gets longer,
HDFS_PUT_S = 15.0  # by this, plus its bytes at this rate:
HDFS_PUT_BYTES_A_S = 512 * 1024
HDFS_UNFINISHED_S = 3600.0  # a killed writer's leftovers are deleted at this age
HDFS_SET_TRIES = 20  # of a compare-and-set change to a small value

# --- Kafka door -----------------------------------------------------------------------------------
KAFKA_REQUEST_BYTES = 32 * MIB  # of one request; a producer's have 1 MiB by default
KAFKA_REQUEST_ITEMS = 25_000  # in the arrays of one request: partitions, topics and the like, about 20 us each
KAFKA_RECEIVED_BYTES = 256 * MIB  # of all requests that are being received or answered,
KAFKA_UNKNOWN_PEER_BYTES = 64 * KIB  # of a request before the login
KAFKA_PAUSE_S = 5.0  # of a peer amid a larger request, whose bytes are reserved
KAFKA_IDLE_S = 600.0  # without a request, as Kafka's connections.max.idle.ms
KAFKA_REQUESTS_AT_ONCE = 100  # of one connection; their responses keep their order
KAFKA_BATCH_BYTES = MIB + 12  # of a record batch: Kafka's max.message.bytes
KAFKA_BATCH_RECORDS = 1_000_000  # of a compressed batch: the most of librdkafka; readers take seconds to decode them
KAFKA_FETCH_BYTES = 16 * MIB  # of one response, if the consumer allows more
KAFKA_APPEND_BYTES = 4 * MIB  # of batches that one append stores
KAFKA_WAITING_BYTES = 32 * MIB  # of batches that wait for a partition's append
KAFKA_CHUNK_BYTES = MIB  # of consecutive events, whose batches are cached together,
KAFKA_CACHE_BYTES = 96 * MIB  # by a door
KAFKA_ROWS = 8_192  # of a segment's offsets that are kept in memory; then every other old one is dropped
KAFKA_ROW_BYTES = 16 * MIB  # of a segment, for each row of offsets that is stored
KAFKA_ROW_S = 2.0  # until a row of counted records is stored, in case that retention truncates them
KAFKA_PARTITIONS = 10_000  # of a topic
KAFKA_TOPICS_A_TURN = 100  # of requests for many partitions, each about 20 us, before other clients have a turn
KAFKA_TOPIC_CACHED_S = 5.0  # a topic's configuration
KAFKA_HEAD_CACHED_S = 5.0  # where a topic's stream begins
KAFKA_WRITERS = 10_000  # producers, by partition, that a door remembers
KAFKA_MAX_WAIT_S = 60.0  # of a fetch
KAFKA_GROUP_MEMBERS = 1_000
KAFKA_GROUP_BYTES = 512 * KIB  # of its members; with their assignments, they must fit into a value of a table
KAFKA_FIRST_JOIN_S = 0.5  # an empty group waits this long for more members
KAFKA_GROUPS = 10_000  # of one door
KAFKA_SESSION_S = (1.0, 1800.0)  # a group member's shortest and longest session
KAFKA_TRANSACTION_S = 900.0  # the longest timeout of a transaction, as Kafka's transaction.max.timeout.ms
KAFKA_TRANSACTIONAL_ID_S = 7 * 86_400.0  # without use until it is forgotten, as Kafka's transactional.id.expiration.ms
KAFKA_UNUSED_GROUP_S = 7 * 86_400.0  # since its last commit until it is forgotten, as offsets.retention.minutes
KAFKA_CLEANED_S = 3600.0  # interval of looking for records of deleted topics and unused groups
KAFKA_TRANSACTIONS_CHECKED_S = 5.0  # interval of looking for transactions that have timed out
KAFKA_LAGS_S = 10.0  # interval of measuring the lags of groups for the metrics
KAFKA_METADATA_BYTES = 4096  # stored with a committed offset
