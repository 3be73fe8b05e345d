"""Mutations that break one rule each: simulations are worth what they detect."""
