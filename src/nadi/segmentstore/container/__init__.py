"""A segment container: the one owner of its segments' state, over one log.

Owns the order of requests, frames and checkpoints, and the cache. Never sees a connection.
"""
