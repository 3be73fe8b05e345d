"""The doors through which any server answers for all: calls and requests passed on to the active controller, and that
one's way to segments in other stores.

It never sees records, nor who is to have what.
"""
