"""Turn events into appends: writers, batches, transactions, event time.

Owns the order of each key's events and all unacknowledged events. Never reads.
"""
