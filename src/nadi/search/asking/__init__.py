"""Queries: `local` has the newest shards as one index of tantivy's, `searching` asks it, `pages` says where the next
page begins, `events` gets the hits' events from the stream, and `excerpts` shows where a query's words are in them."""
