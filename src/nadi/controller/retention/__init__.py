"""Retention: what a stream retains by its policy, reader groups, bookmarks and slices, and where it is truncated."""
