"""Reads a segment's verified bytes from wherever they are stored, and finds where events start in them."""
