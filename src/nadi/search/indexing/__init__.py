"""Indexers: each follows its share of a stream's segments, makes shards of what comes and adds them to the index
(`indexer`), writes what doesn't parse to a stream (`letters`), merges and deletes shards (`upkeep`). `past`
has what came before indexed by many."""
