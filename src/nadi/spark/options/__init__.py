"""The options of the formats: one table of them, and what those of a read or a write say."""
