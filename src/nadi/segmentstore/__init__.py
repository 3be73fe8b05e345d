"""The data plane: segments in containers, over a durable log (tier 1) and chunk objects (tier 2)."""
