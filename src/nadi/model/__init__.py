"""Shared values of nadi without I/O: key space, events, stream cuts, stream configuration."""
