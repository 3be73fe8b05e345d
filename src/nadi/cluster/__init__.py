"""Servers that share one object store: membership, placement of containers, takeover and proxying.

Safety doesn't depend on the decisions made here: the fenced logs and compare-and-set records guarantee it. Only one
promise rests on the lease: a server that was replaced never answers a read. This package never sees an event.
"""
