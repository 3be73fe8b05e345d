"""Random and damaged input for every interface open to strangers: see `__main__`."""
