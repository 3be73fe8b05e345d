"""A whole cluster in the simulation: its servers' nodes as in production, over one simulated object store."""
