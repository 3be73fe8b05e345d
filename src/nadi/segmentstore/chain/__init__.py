"""A container's log as a chain of objects in a `LogEngine`, which any server may continue: for clusters.

Owns the objects' bytes (`layout`), the walk to the chain's end and its takeover (`walk`), and the log (`log`). Knows
nothing of claims or of the container's state.
"""
