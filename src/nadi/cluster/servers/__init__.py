"""Which servers there are: their entries in the registry, who lives, and the lease for reads.

It never sees a container.
"""
