"""Share state among programs over a revisioned stream: log, synchronizer, map, set, counter, journal, leader election.

Owns the order of updates. Never sees event streams.
"""
