"""The command line.

Its modules import at the top only what help and completion need, because a user waits for that at each press of the tab
key. Importing client and server takes most of a second, so a command imports them only when it runs.
"""
