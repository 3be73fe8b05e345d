"""An Iceberg table as the lake needs it: opened, written with nadi's file names, and changed by whole snapshots.

Only this package knows PyIceberg; of streams it only knows the text of a cut.
"""
