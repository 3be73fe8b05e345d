"""Matching a shop's returns with sales: two streams of real sales and returns, joined within thirty days."""
