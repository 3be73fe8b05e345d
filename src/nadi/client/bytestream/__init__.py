"""Byte streams: a segment as a file of bytes without events."""
