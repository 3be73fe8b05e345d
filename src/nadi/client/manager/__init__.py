"""The client as a whole: `StreamManager`, made of administration, event streams and structures.

Owns all that a client opened, and ends it. The rooms below never know it.
"""
