"""Shards: tantivy's index of some events, written once as one object. `building` makes them, and one of many; `packing`
says what such an object is, `manifest` which of them make up an index and how far it has come, `objects` where they
are."""
