"""From events to appends: writers, batches, transactions, event time.

Owns the order of a key's events and what was not acknowledged yet. Never reads.
"""
