"""Limits of search; imported from `nadi.limits`, as all others."""

from __future__ import annotations

_KIB = 1024
_MIB = 1024 * _KIB

SEARCH_FIELDS = 100  # of an index
SEARCH_FIELD_CHARS = 255  # of a field's name
SEARCH_KEYWORD_BYTES = 32 * _KIB  # a longer keyword is no keyword: the event doesn't parse
SEARCH_TOKEN_BYTES = 256  # a longer word of a text is not found
SEARCH_QUERY_CHARS = 20_000
SEARCH_QUERY_DEPTH = 40  # parentheses and NOTs within each other
SEARCH_QUERY_PARTS = 1_000  # terms of a query, bound to an index's fields
SEARCH_APART = 20  # words, at most, that two may be apart which are asked for near each other

SEARCH_COMMIT_S = 0.3  # how long what came waits for more, before it becomes a shard
SEARCH_BATCH_EVENTS = 100_000  # of a shard while there is much to index,
SEARCH_BATCH_BYTES = 32 * _MIB  # and their bytes in the stream: three such batches are in memory
SEARCH_WRITER_BYTES = 256 * _MIB  # that tantivy may use for one shard
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
SEARCH_PAGE_BYTES = 16 * _MIB  # of a page's events, if it has more than one: it ends earlier then
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
SEARCH_MATCH_BYTES = 4 * _MIB  # of events that are matched at once
SEARCH_HIT_BYTES = 4 * _MIB  # of an event, in all its hits together; beyond it they only say where it is
SEARCH_STANDING_QUERIES = 100_000  # of a stream
SEARCH_STANDING_GROUPS = 1_000  # in which they were added, each at once
SEARCH_RECORDS_AT_ONCE = 500  # queries stored in one request
SEARCH_NEAR_BYTES = 4 * _MIB  # of the live stream, where new queries that come from the past join it
SEARCH_CACHED_S = 3600.0  # an unused shard stays so long in a query's local cache
SEARCH_CACHED_INDEX_S = 86_400.0  # and all shards of an index that nobody opens
SEARCH_MANIFEST_BYTES = 64 * _MIB  # of a manifest, unpacked: a longer one isn't one that nadi wrote
