"""Clients of hash tables in one segment, key-value tables with partitions, and catalogs of named records."""
