"""Servers that share the containers of one store: who is there, and who is to have which container.

It owns the servers' entries in the registry, the lease for reads, and the decisions to claim a container or give it
away. It never sees a segment, an event or a byte of the log. Safety is not here: whatever is decided, the container's
record settles by compare-and-set. Only the promise that nobody reads from a server that was replaced is the lease's.
"""
