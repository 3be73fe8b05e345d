"""Tier 2, long-term storage: immutable chunk objects, written behind the log."""
