"""Places in a stream: cuts and their algebra, moments, bookmarks, named slices.

Owns the table that keeps names for cuts. Reads events only to count them.
"""
