"""A container's log as a chain of objects in a `LogEngine`, which any server may continue: for clusters.

It owns the objects' bytes (`layout`), how to find the chain's end and take it over (`walk`), and the log (`log`). It
never sees who may claim a container, nor its state.
"""
