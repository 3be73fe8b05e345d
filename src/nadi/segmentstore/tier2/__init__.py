"""Tier 2, long-term storage: immutable chunk objects, written after the log."""
