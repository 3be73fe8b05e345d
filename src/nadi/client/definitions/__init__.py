"""What makes a stream a table: its columns, the key of its rows, the column of their time. Kept in the store by name.

Owns the table of a scope's definitions. Reads no events.
"""
