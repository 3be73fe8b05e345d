"""From one place to another, of data folders and clusters' stores: `nadi migrate`.

Both keep the same things under the same rules: for each container a state, and chunks that it names. So a migration
reads the states from their snapshots, divides what they say among the containers of the other side, and copies the
chunks; logs are not copied, for before the end everything in them is moved to tier 2. Nothing is written to the source
but whose turn it is and, at the very end, the mark that it was left; nobody can open the target until then, and whoever
starts a migration again goes on with what is there. It never sees an event.
"""
