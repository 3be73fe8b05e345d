"""Queries: `local` has the newest shards as one index of tantivy's, `pages` asks it for the hits of a page, `searching`
gets their events from the stream, with excerpts."""
