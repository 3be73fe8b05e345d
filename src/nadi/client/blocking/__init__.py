"""Blocking counterparts of the asyncio client's classes, which run each call in the client's thread.

`face` defines how each method is called.
"""
