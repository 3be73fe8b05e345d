"""Indexers: each follows its share of a stream's segments, makes shards of what comes and adds them to the index
(`indexer`), which also merges and deletes shards, and writes what doesn't parse to a stream (`letters`). `past` has
what came before indexed by many."""
