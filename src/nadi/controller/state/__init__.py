"""What the controller keeps: records of scopes and streams, their histories, in tables of the segment store.

Owns the format of records and every conditional change to one. Starts no work.
"""
