"""Transactions, from their start to the decision to commit or abort, and their merge."""
