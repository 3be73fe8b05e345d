"""The blocking face of the asyncio client: the same classes, each call run in the client's own thread.

Owns that thread, and defines how each method is called (`face`). Adds no behaviour.
"""
