"""Random damage to a stopped server's folder: everything read afterwards must be correct, or reported as damaged."""
