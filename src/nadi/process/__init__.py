"""Processing a stream with any number of workers: they share its segments, and each position has one owner."""
