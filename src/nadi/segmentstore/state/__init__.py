"""A container's segments: records and operations in memory, LMDB on disk, and the checks of both.

Owns the form of records, operations and pages. Neither writes the log nor reads data.
"""
