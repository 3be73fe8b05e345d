"""A container's state kept in tier 2, and rebuilt from there and the log."""
