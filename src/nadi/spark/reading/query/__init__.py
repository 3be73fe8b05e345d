"""A streaming query: its offsets, how far its batches go, its group, how far it is behind."""
