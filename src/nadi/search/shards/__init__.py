"""Shards: each is a tantivy index of some events, written once as one object. `building` makes them; `manifest` lists
those of an index and its progress."""
