"""`nadi cluster`: what an operator sees of a cluster, and does with it."""
