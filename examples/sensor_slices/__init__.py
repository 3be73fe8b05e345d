"""Sensors, the slices in which their values are high, and what is in each slice: three programs linked by streams."""
