"""A whole cluster in the simulation: production nodes over one simulated object store."""
