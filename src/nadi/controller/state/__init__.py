"""What the controller keeps: records of scopes and streams, their histories, in tables of the segment store.

Owns the form of records and each conditional change of one. Starts no work.
"""
