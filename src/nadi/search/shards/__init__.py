"""Shards: tantivy's index of some events, written once as one object. `building` makes them, `manifest` says which of
them make up an index and how far it has come."""
