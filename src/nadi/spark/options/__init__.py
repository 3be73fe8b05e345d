"""The options of Spark's formats: one table of all, and the parsed options of a read or a write."""
