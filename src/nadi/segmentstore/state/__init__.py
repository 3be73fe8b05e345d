"""What a container knows of its segments: records and operations in memory, LMDB on disk, and how both are checked.

Owns the form of records, operations and pages. Neither writes the log nor reads data.
"""
