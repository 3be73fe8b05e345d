"""Rebuild what the controller's records lost: streams, tables and groups, from the names of their segments.

A repair of the segment store may give up table entries, and with them what the controller knew about a stream whose
segments are intact. `look` finds what can no longer be reached, and `carry_out` rebuilds it.
"""
