"""Retention with real servers, real files and real clients."""
