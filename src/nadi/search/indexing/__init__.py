"""Indexers: each follows its share of a stream's segments (`sharing`, `following`), makes shards of what comes and adds
them to the index (`indexer`, `changes`), writes what doesn't parse to a stream (`letters`), merges and deletes shards
(`upkeep`). `past` has the past indexed by many."""
