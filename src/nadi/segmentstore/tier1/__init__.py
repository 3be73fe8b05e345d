"""Tier 1, the durable log of a segment container: `log` is the seam; `files` and `memory` implement it."""
