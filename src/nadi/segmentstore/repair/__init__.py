"""A folder that no server runs in: what is damaged, what can be had back, and having it back.

Changes nothing without being asked, deletes nothing ever.
"""
