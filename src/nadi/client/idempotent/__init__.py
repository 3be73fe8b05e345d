"""Write numbered events exactly once, even if another process repeats them under the same writer id."""
