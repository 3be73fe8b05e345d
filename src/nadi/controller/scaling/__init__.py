"""Automatic scaling: `judge` decides on splits and merges by policy and load; `rounds` carries them out."""
