"""Serves connections over the wire: appends, reads, fair scheduling, tokens; and commands of the same process.

Owns each peer's buffers and the order of turns. Changes segments only through a container's queue.
"""
