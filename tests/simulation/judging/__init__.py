"""Observations of clients, and checks that the storage guarantees allow it."""
