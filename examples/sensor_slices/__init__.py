"""Slices of sensors' high values, and their aggregates: three programs linked by streams."""
