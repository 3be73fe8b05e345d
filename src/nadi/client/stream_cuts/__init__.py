"""Make, compare and name stream cuts: cuts by time and by count, bookmarks, named slices.

Owns the table of bookmarks and slices. Reads events only to count them and to index their times.
"""
