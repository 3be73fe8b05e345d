"""What a stream keeps, by its policy, reader groups, bookmarks and slices, and the cut at which it is truncated."""
