"""Streams read as tables by stored definitions: their rows, the latest row of each key, and changes.

Reads with `scan`; stores nothing but the progress of written changes.
"""
