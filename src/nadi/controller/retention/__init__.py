"""What a stream keeps: its policy, what reader groups have consumed, what bookmarks and slices name, and the cut at
which all of that lets it be truncated."""
