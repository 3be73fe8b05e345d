"""Automatic scaling: `decisions` decides on splits and merges by policy and load; `rounds` carries them out."""
