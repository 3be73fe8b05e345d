"""A segment container: the sole owner of its segments' state, over one log.

Owns the order of requests, frames and checkpoints, and the cache. Knows nothing of connections.
"""
