"""From segments' bytes to events: a reader of a slice, reading ahead, damage, watermarks.

Owns how far each segment was read. Which segment may follow is decided by `nadi.model.frontier`.
"""
