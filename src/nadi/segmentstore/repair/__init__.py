"""A folder that no server runs in: what is damaged, what can be recovered, and its recovery.

Changes nothing without being asked, never deletes anything.
"""
