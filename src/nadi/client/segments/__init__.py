"""Segment stores as a client knows them: connections, tokens, where a segment is, its bytes in both directions.

Owns the connections, and the retries when one is lost. Of events it knows only the headers, never what
writers, readers and tables make of them.
"""
