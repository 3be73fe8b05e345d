"""From events to appends: writers, batches, transactions, event time.

Owns the order of each key's events and everything not yet acknowledged. Never reads.
"""
