"""The smart-meter demo: one household's meters as a stream, sliced, bookmarked and replayed through Spark."""
