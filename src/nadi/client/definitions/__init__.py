"""Definitions of stream tables: the columns, the key and the event time of a stream read as a table.

Owns the table that stores a scope's definitions by name. Reads no events.
"""
