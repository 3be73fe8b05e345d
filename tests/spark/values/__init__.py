"""Events read as values."""
