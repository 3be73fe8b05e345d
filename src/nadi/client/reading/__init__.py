"""Turn segments' bytes into events: slice readers, read-ahead, damage, watermarks.

Owns the read position in each segment. `nadi.model.frontier` decides which segment may be read next.
"""
