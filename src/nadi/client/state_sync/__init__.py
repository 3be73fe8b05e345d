"""State that several programs share over a revisioned stream: the log, the synchronizer, map, set, counter, journal and
leader election.

Owns how updates are put in one order. Never sees event streams.
"""
