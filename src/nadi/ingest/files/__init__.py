"""Log files into a stream, through rotation: each line once and in order, whatever is killed (docs/ingest.md)."""
