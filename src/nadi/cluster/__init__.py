"""Servers that share an object store, and nothing else: who has which container, and how that changes.

It owns the containers' records and their parts, membership, placement, and the door through which any server answers
for all of them. It never sees a segment's bytes, nor what the controller keeps.
"""
