"""Streams as rows: the cuts and tasks of a read, and the batches of a streaming query."""
