"""`nadi spark`: options, mirrored checkpoints, and an archive with which sessions start faster."""
