"""Streams as rows: which cuts, which tasks, which batches of a streaming query."""
