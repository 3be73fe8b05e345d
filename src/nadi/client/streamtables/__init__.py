"""Streams as tables, by the definitions that the store keeps: their rows, the latest of each key, and changes.

Reads by `scan`, and owns what is made of its rows: nothing here is kept in the store but what it says of its progress.
"""
