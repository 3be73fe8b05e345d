"""Errors in the logs of a shop's services, counted in five-minute windows, late lines included, exactly once."""
