"""Indexers: each follows its share of a stream's segments, makes shards of what comes and adds them to the index,
writes what doesn't parse to a stream, and merges and deletes shards (`indexer`). `past` has what came before indexed by
many."""
