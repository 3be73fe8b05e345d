"""From segments' bytes to events: a reader of a slice, reading ahead, damage, watermarks.

Owns where each segment was read to. Which segment may follow is `nadi.model.frontier`'s to say.
"""
