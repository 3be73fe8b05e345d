"""The blocking face of the asyncio client: the same classes, each call run in the client's own thread.

Owns that thread. Adds no behaviour.
"""
