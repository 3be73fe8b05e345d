"""Shakespeare's plays as a stream of speeches, searched."""
