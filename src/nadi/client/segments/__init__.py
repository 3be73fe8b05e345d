"""Segment stores as a client knows them: connections, tokens, where a segment is, its bytes in both directions.

Owns the connections and what is asked again when one is lost. Knows events only as far as their headers; never what
writers, readers and tables make of them.
"""
