"""Servers that share an object store, and nothing else: who is there, and who has which container. Safety isn't in what
is decided here: logs and records settle that. Only the promise that nobody reads from a server that was replaced is the
lease's. It never sees an event.
"""
