"""One rule broken at a time: what a simulation is worth is what it finds."""
