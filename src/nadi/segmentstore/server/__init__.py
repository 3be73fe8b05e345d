"""The ways in: connections over the wire, their appends and reads, turns, tokens; and the server's own calls.

Owns what is held for a peer and whose turn it is. Changes segments only through a container's queue.
"""
