"""`nadi spark`: Spark options, mirrored checkpoints, and a class archive that speeds up the start of sessions."""
