"""Stores a container's state in tier 2, and rebuilds it from there and the log."""
