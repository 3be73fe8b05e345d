"""A stream read by many workers at once, through whatever one has for that."""
