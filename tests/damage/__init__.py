"""Random damage to a stopped server's folder: whatever is delivered afterwards must be right, or be told as damaged."""
