"""`StreamManager`, the entry point of the client: administration, event streams and structures.

Owns and closes everything that a client opened. Lower layers don't import it.
"""
