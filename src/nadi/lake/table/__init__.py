"""An Iceberg table as the lake needs it: opened, written in files of its own naming, and changed by whole snapshots.

What PyIceberg offers, and what it leaves to be done, is known here alone; of streams nothing is but the text of a cut.
"""
