"""Transactions from their beginnings to the decisions to commit or to abort them; `commit` merges them."""
