"""Tier 1, the durable log of a segment container: `log` defines it; `files` and `memory` implement it."""
