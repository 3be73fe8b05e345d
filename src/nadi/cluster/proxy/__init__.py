"""The doors through which any server answers for all, and the active controller's way to segments in other stores. It
never sees records, nor who is to have what.
"""
