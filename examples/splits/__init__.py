"""A stream read by many workers in parallel, with several engines."""
