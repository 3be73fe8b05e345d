"""Answers queries: `shard_cache` opens the newest shards as one tantivy index, `pages` gets a page's hits from it,
`index_search` reads their events from the stream and makes excerpts."""
