"""A segment as a file: bytes without events."""
