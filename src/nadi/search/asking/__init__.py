"""Queries: `local` has the newest shards as one index of tantivy's, `searching` asks it and gets the hits' events from
the stream, `pages` says where the next page begins, and `excerpts` shows where a query's words are in them."""
