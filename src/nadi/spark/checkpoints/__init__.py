"""Checkpoints of Spark's queries kept in a byte stream, so that a query goes on on another machine."""
