"""A container's state kept in tier 2, and made anew from there and the log."""
