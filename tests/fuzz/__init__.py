"""Random and damaged input for everything that strangers can send to: see `__main__`."""
