"""From one place to another, of data folders and clusters' stores, which keep the same things under the same rules:
`nadi migrate`. It reads the containers' states from their snapshots, divides what they say among the containers of the
other side, and copies the chunks. It never sees an event.
"""
