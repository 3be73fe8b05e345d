"""Servers that share an object store, and nothing else: who is there, and who has which container.

It owns the servers' entries and the containers' records in the registry, the parts of a container whose log and state
lie in the store, the lease for reads, the decisions to claim a container or give it away, and the door through which
any server answers for all. It never sees an event. Safety is not in what is decided here: logs and records settle that.
Only the promise that nobody reads from a server that was replaced is the lease's.
"""
