"""`nadi migrate`: moves data between data folders and clusters' stores, which share one storage format. It reads the
containers' states from their snapshots, distributes their records among the target's containers, and copies the chunks.
It never sees an event.
"""
